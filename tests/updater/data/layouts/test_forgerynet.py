"""ForgeryNet's trees become entries: by the number of a directory, whatever the columns say."""

from collections import Counter
from pathlib import Path

import pytest
from makers import noted, touch

from updater.data.layouts.entries import Entry, LayoutError, Listing
from updater.data.layouts.forgerynet import APPROACHES, REAL_SOURCES, classes_of, load_forgerynet

DIGITS = "1" * 32
"""a hash that consists of digits, as a careless reader's directory would"""


def hash_of(number: int) -> str:
    return f"{number:032x}"


def write_list(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def labels(directory: int) -> str:
    return " ".join(map(str, classes_of(directory)))


def by_name(listing: Listing) -> dict[str, Entry]:
    return {entry.path.name: entry for entry in listing.entries}


@pytest.fixture
def images(tmp_path: Path) -> Path:
    """Training and Validation with right columns, wrong ones, files in two folders, maps, and holes."""
    train, val = tmp_path / "Training", tmp_path / "Validation"
    rows = [
        # The authors' own example: directory 7 with the sixteen-way label 15.
        ("image", f"train_release/7/{hash_of(1)}/{hash_of(2)}/frame00038.jpg", "1 1 15"),
        ("image2", f"train_release/11/{hash_of(3)}/{hash_of(4)}/frame00001.jpg", labels(11)),
        ("image", f"train_release/5/{DIGITS}/{hash_of(5)}/frame00002.jpg", labels(5)),
        ("image2", f"train_release/16/{hash_of(6)}/frame00003.jpg", labels(16)),
        (None, f"train_release/19/{hash_of(7)}/frame00004.jpg", labels(19)),
    ]
    for place, path, _ in rows:
        if place is not None:
            touch(train / place / path)
    write_list(train / "image_list.txt", [f"{path} {columns}" for _, path, columns in rows])
    touch(train / f"spatial_localize/train_mask_release/7/{hash_of(1)}/{hash_of(2)}/frame00038.png")
    touch(train / f"spatial_localize/train_mask_release/16/{hash_of(6)}/frame00003.png")
    rows = [
        # Seen in a published list: binary 0 for directory 1, and 1 for directory 19.
        ("image", f"val_perturb_release/1/{hash_of(8)}/{hash_of(9)}/frame00005.jpg", "0 0 0"),
        ("image", f"val_perturb_release/19/{hash_of(10)}/frame00006.jpg", "1 2 1"),
    ]
    for place, path, _ in rows:
        touch(val / str(place) / path)
    write_list(val / "image_list.txt", [f"{path} {columns}" for _, path, columns in rows])
    touch(val / f"spatial_localize/1/{hash_of(8)}/{hash_of(9)}/frame00005.png")
    return tmp_path


def test_the_directory_gives_every_label_and_the_columns_none(images):
    found = by_name(load_forgerynet(images, "image"))
    assert {name: (entry.label, entry.family) for name, entry in found.items()} == {
        "frame00038.jpg": (1, "Talking-head Video"),
        "frame00001.jpg": (1, "StyleGAN2"),
        "frame00002.jpg": (1, "MMReplacement"),
        "frame00003.jpg": (0, "real"),
        "frame00005.jpg": (1, "FaceShifter"),
        "frame00006.jpg": (0, "real"),
    }


def test_a_reader_of_the_columns_would_get_it_wrong(images):
    believed = {
        line.split()[0].rpartition("/")[2]: int(line.split()[1])
        for part in ("Training", "Validation")
        for line in (images / part / "image_list.txt").read_text().splitlines()
    }
    wrong = [e for e in load_forgerynet(images, "image").entries if believed[e.path.name] != e.label]
    assert len(wrong) == 2


def test_rows_that_contradict_their_directory_are_counted_and_told_once(images):
    (note,) = noted(load_forgerynet(images, "image"), "contradict")
    assert note.startswith("3 rows")
    assert "frame00038.jpg" in note


def test_a_missing_file_is_left_out_and_counted(images):
    listing = load_forgerynet(images, "image")
    assert "frame00004.jpg" not in by_name(listing)
    (note,) = noted(listing, "missing")
    assert note.startswith("1 ")


def test_the_folders_are_the_splits_and_every_folder_of_pictures_is_searched(images):
    listing = load_forgerynet(images, "image")
    assert Counter(entry.split for entry in listing.entries) == {"train": 4, "val": 2}
    assert {entry.path.relative_to(images).parts[1] for entry in listing.entries} == {"image", "image2"}


def test_a_map_belongs_to_the_forged_picture_of_the_same_stem(images):
    listing = load_forgerynet(images, "image")
    maps = {e.path.name: [m.relative_to(images).as_posix() for m in e.masks if m] for e in listing.entries}
    assert {name: found for name, found in maps.items() if found} == {
        "frame00038.jpg": [
            f"Training/spatial_localize/train_mask_release/7/{hash_of(1)}/{hash_of(2)}/frame00038.png"
        ],
        "frame00005.jpg": [f"Validation/spatial_localize/1/{hash_of(8)}/{hash_of(9)}/frame00005.png"],
    }
    (note,) = noted(listing, "no map")
    assert note.startswith("2 forged pictures")


def test_a_list_and_pictures_of_two_releases_are_one_line(images):
    rows = (images / "Validation/image_list.txt").read_text().splitlines()
    lost = [f"val_perturb_release/3/{hash_of(n)}/{hash_of(n)}/frame.jpg {labels(3)}" for n in range(20, 22)]
    write_list(images / "Validation/image_list.txt", [*rows, *lost])
    assert len(noted(load_forgerynet(images, "image"), "missing")) == 1, "half of them are there"
    lost.append(f"val_perturb_release/3/{hash_of(22)}/{hash_of(22)}/frame.jpg {labels(3)}")
    write_list(images / "Validation/image_list.txt", [*rows, *lost])
    with pytest.raises(LayoutError, match=r"names 5 files; of these, 2 are there.*one release") as error:
        load_forgerynet(images, "image")
    assert "\n" not in str(error.value)


def test_paths_that_begin_nowhere_are_one_line(images):
    (images / "Validation/image/val_perturb_release").rename(images / "Validation/image/elsewhere")
    with pytest.raises(LayoutError, match=r"image_list\.txt names val_perturb_release/.* holds"):
        load_forgerynet(images, "image")


def test_a_folder_of_something_else_is_one_line(tmp_path):
    with pytest.raises(LayoutError, match="no Training/video_list"):
        load_forgerynet(tmp_path, "video")


def test_a_hash_that_stands_in_two_splits_stays_in_validation_alone(images):
    path = f"val_perturb_release/7/{hash_of(1)}/{hash_of(99)}/frame00007.jpg"
    touch(images / "Validation/image" / path)
    with (images / "Validation/image_list.txt").open("a") as rows:
        rows.write(f"{path} {labels(7)}\n")
    listing = load_forgerynet(images, "image")
    assert {"frame00007.jpg"} == {e.path.name for e in listing.entries if e.group == hash_of(1)}
    (note,) = noted(listing, "left out of train")
    assert note.startswith("1 entries")


def test_hostile_rows_are_left_out_and_lead_nowhere(images):
    touch(images / "secret/3/a/b.jpg")
    touch(images / f"Training/image2/train_release/19/{hash_of(7)}/frame00004.jpg")
    strange = [
        "../../secret/3/a/b.jpg 1 2 3",
        f"{images}/secret/3/a/b.jpg 1 2 3",
        f"train_release/3/{'x' * 5000}/a.jpg 1 2 3",
        f"train_release/3/{hash_of(1)}/\udcff\0.jpg 1 2 3",
        f"train_release/20/{hash_of(1)}/a.jpg 1 2 3",
        f"train_release/{DIGITS}/3/a.jpg 1 2 3",
        f"train_release/{'3' * 5000}/a/a.jpg 1 2 3",
        f"train_release/3/a/a.jpg 1 2 {'3' * 5000}",
        "train_release/hello.jpg 1 2 3",
        f"train_release/3/{hash_of(1)}/a.jpg 1 2",
        f"train_release/3/{hash_of(1)}/a.jpg one 2 3",
        "3",
    ]
    before = by_name(load_forgerynet(images, "image"))
    path = images / "Training/image_list.txt"
    good = path.read_text().splitlines()
    path.write_bytes("\n".join([*good, *strange]).encode("utf-8", "surrogateescape"))
    listing = load_forgerynet(images, "image")
    assert by_name(listing) == before
    assert noted(listing, "no directory from 1 to 19")[0].startswith("4 ")
    assert noted(listing, "not of their list's form")[0].startswith("4 ")


def test_a_file_that_is_listed_twice_is_one_entry(images):
    path = images / "Validation/image_list.txt"
    path.write_text(path.read_text() * 2)
    listing = load_forgerynet(images, "image")
    assert len(listing.entries) == 6
    assert noted(listing, "again")[0].startswith("2 ")


def test_every_directory_has_its_classes_of_two_three_and_sixteen():
    assert [classes_of(d) for d in (1, 2, 7, 9, 10, 15, 16, 19)] == [
        *((1, 2, 1), (1, 2, 2), (1, 1, 7), (1, 2, 9), (1, 1, 10), (1, 1, 15)),
        *((0, 0, 0), (0, 0, 0)),
    ]
    kinds = Counter(approach.kind for approach in APPROACHES.values())
    assert kinds == {"remained": 8, "replaced": 7}
    assert [d for d, approach in APPROACHES.items() if approach.in_videos] == list(range(1, 9))
    assert sorted([*APPROACHES, *REAL_SOURCES]) == list(range(1, 20))

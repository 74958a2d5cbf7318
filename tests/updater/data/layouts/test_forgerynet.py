"""ForgeryNet's trees become entries: by the number of a directory, whatever the columns say."""

from collections import Counter

import pytest
from makers import noted, touch

from updater.data.layouts.entries import Extent, LayoutError, SegmentsError, with_frames
from updater.data.layouts.forgerynet import (
    APPROACHES,
    REAL_SOURCES,
    RowError,
    classes_of,
    load_forgerynet,
    row_of,
)

DIGITS = "1" * 32
"""a hash that consists of digits, as a careless reader's directory would"""


def hash_of(number):
    return f"{number:032x}"


def write_list(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def labels(directory):
    return " ".join(map(str, classes_of(directory)))


def by_name(listing):
    return {entry.path.name: entry for entry in listing.entries}


@pytest.fixture
def images(tmp_path):
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
    assert len([e for e in load_forgerynet(images, "image").entries if believed[e.path.name] != e.label]) == 2


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
    path.write_bytes("\n".join([*path.read_text().splitlines(), *strange]).encode("utf-8", "surrogateescape"))
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
    assert Counter(approach.kind for approach in APPROACHES.values()) == {"remained": 8, "replaced": 7}
    assert [d for d, approach in APPROACHES.items() if approach.in_videos] == list(range(1, 9))
    assert sorted([*APPROACHES, *REAL_SOURCES]) == list(range(1, 20))


# ForgeryNet's lists of videos: which frames are forged, which are not, and of which nothing is known.
V = "val_video_release"


@pytest.fixture
def videos(tmp_path):
    """A validation list with every trap of stretches, and files of directories that it passes over."""
    rows = {
        "partly": f"3 {V}/4/{hash_of(1)}/partly/video.mp4 0 10 0 10 35 1 45 30 0 1 2 4",
        "late": f"2 {V}/1/{hash_of(2)}/late/video.mp4 79 10 1 89 20 0 1 2 1",
        "real": f"1 {V}/19/{hash_of(3)}/real/video.mp4 0 73 0 0 0 0",
        "flagged": f"2 {V}/17/{hash_of(4)}/flagged/video.mp4 0 20 0 20 20 1 0 0 0",
        "unforged": f"1 {V}/3/{hash_of(5)}/unforged/video.mp4 0 20 0 1 2 3",
        "overlap": f"2 {V}/3/{hash_of(6)}/overlap/video.mp4 0 20 0 19 20 1 1 2 3",
        "gap": f"2 {V}/3/{hash_of(7)}/gap/video.mp4 0 20 0 21 20 1 1 2 3",
        "empty": f"1 {V}/3/{hash_of(8)}/empty/video.mp4 5 0 1 1 2 3",
        "negative": f"1 {V}/3/{hash_of(9)}/negative/video.mp4 -5 10 1 1 2 3",
        "flag": f"1 {V}/3/{hash_of(10)}/flag/video.mp4 0 10 2 1 2 3",
        "short": f"2 {V}/3/{hash_of(11)}/short/video.mp4 0 10 1 1 2 3",
    }
    for row in rows.values():
        touch(tmp_path / "Validation" / "video" / row.split()[1])
    for directory in (2, 8):
        for name in ("a", "b"):
            touch(tmp_path / f"Validation/video/{V}/{directory}/{hash_of(20)}/{name}/video.mp4")
        touch(tmp_path / f"Validation/video/{V}/{directory}/notes.txt")
    (tmp_path / "Validation/video_list.txt").write_text("\n".join(rows.values()) + "\n")
    return tmp_path


def listed(listing):
    return {entry.path.parent.name: entry for entry in listing.entries}


def test_stretches_become_segments_and_the_frames_outside_of_them_stay_unlabelled(videos):
    found = listed(load_forgerynet(videos, "video"))
    assert found["partly"].segments == (Extent(10, 45),)
    assert found["partly"].annotated == (0, 75)
    assert found["late"].segments == (Extent(79, 89),)
    assert found["late"].annotated == (79, 109)
    assert (found["real"].label, found["real"].segments, found["real"].annotated) == (0, (), (0, 73))


def test_a_real_directory_is_real_whatever_its_flags_say(videos):
    flagged = listed(load_forgerynet(videos, "video"))["flagged"]
    assert (flagged.label, flagged.family, flagged.segments) == (0, "real", ())


def test_a_forged_video_without_a_forged_stretch_is_for_classification_alone(videos):
    listing = load_forgerynet(videos, "video")
    unforged = listed(listing)["unforged"]
    assert (unforged.label, unforged.segments, unforged.annotated) == (1, (), None)
    assert noted(listing, "contradict")[0].startswith("2 rows")


def test_rows_whose_stretches_do_not_follow_on_one_another_are_left_out_and_counted(videos):
    listing = load_forgerynet(videos, "video")
    assert {"overlap", "gap", "empty", "negative", "flag", "short"} & set(listed(listing)) == set()
    assert noted(listing, "overlap")[0].startswith("4 rows")
    assert noted(listing, "not of their list's form")[0].startswith("2 rows")


def test_directories_2_and_8_are_found_without_a_row_and_have_no_segments(videos):
    listing = load_forgerynet(videos, "video")
    whole = [e for e in listing.entries if e.family in ("FS-GAN", "ATVG-Net")]
    assert Counter(e.family for e in whole) == {"FS-GAN": 2, "ATVG-Net": 2}
    assert all((e.label, e.segments, e.annotated, e.group) == (1, (), None, hash_of(20)) for e in whole)
    assert noted(listing, "directories 2 and 8")[0].startswith("4 videos")


def test_directory_2_in_a_list_has_no_segments_either_and_is_not_found_twice(videos):
    with (videos / "Validation/video_list.txt").open("a") as rows:
        rows.write(f"1 {V}/2/{hash_of(20)}/a/video.mp4 0 80 1 1 2 2\n")
    listing = load_forgerynet(videos, "video")
    (only,) = [e for e in listing.entries if e.family == "FS-GAN"]
    assert (only.segments, only.annotated) == ((), None)


def test_segments_beyond_the_end_are_told_once_the_number_of_frames_is_known(videos):
    late = listed(load_forgerynet(videos, "video"))["late"]
    assert with_frames(late, 109).frames == 109
    assert with_frames(late, 300).segments == late.segments, "the last stretch may end before the file"
    with pytest.raises(SegmentsError, match=r"has 108 frames.*frame 108"):
        with_frames(late, 108)


@pytest.mark.parametrize("line", ["", "x", "1 a/3/b 0", "-1 a/3/b/c 1 2 3", "9999999999 a/3/b/c 0 1 0 1 2 3"])
def test_a_line_that_is_none_is_refused_by_its_reader(line):
    with pytest.raises(RowError):
        row_of(line, "video")

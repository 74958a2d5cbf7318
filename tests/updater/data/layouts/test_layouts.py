"""What of a published set becomes labelled files, what another folder is told, and what lists have alike."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from published import TREES

from updater.data.layouts.entries import Entry, LayoutError
from updater.data.layouts.layouts import LAYOUTS, labelled_files, read_layout
from updater.data.layouts.listed import (
    Tally,
    below,
    group_items,
    is_there,
    json_in,
    kept_apart,
    lines_of,
    refuse_another_release,
)

IMPORTED = {
    "cddb": {"real": 4, "gaugan": 2, "deepfake": 2},
    "deepfakebench": {"real": 10, "celebdfv2-fake": 8},
    "dfdc": {"real": 2, "dfdc": 2},
    "faceforensics": {"real": 4, "deepfakes": 4, "faceswap": 4},
    "forgerynet": {"real": 2, "faceshifter": 2, "talking-head-video": 2},
}
REPORTED = dict.fromkeys(("cddb", "deepfakebench", "dfdc", "faceforensics"), "test") | {"forgerynet": "val"}


def test_every_layout_has_a_tree_here():
    assert TREES.keys() == LAYOUTS.keys() == IMPORTED.keys()


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_set_is_imported_by_family_but_for_what_it_reports_by(name, tmp_path):
    folder = TREES[name](tmp_path / "data")
    files, notes = labelled_files(name, folder)
    assert Counter(place.partition("/")[0] for place, _ in files) == IMPORTED[name]
    assert len({place for place, _ in files}) == len(files)
    assert all(path.is_file() for _, path in files)
    (note,) = (note for note in notes if "to be measured on" in note)
    assert f"of the set's {REPORTED[name]} are left out" in note
    reported = {entry.path for entry in read_layout(name, folder).entries if entry.split == REPORTED[name]}
    assert reported
    assert not reported & {path for _, path in files} | {path.parent for _, path in files} & reported


@pytest.mark.parametrize(
    ("name", "real", "fake"),
    [
        ("faceforensics", "c23/videos/000.mp4", "Deepfakes/c23/videos/003_000.mp4"),
        ("dfdc", "dfdc_train_part_0/aa.mp4", "dfdc_train_part_0/ab.mp4"),
        ("deepfakebench", "CelebDFv2_real/id0_0001/0.png", "CelebDFv2_fake/id0_id1_0001/0.png"),
        ("cddb", "deepfake/train/0_real/033_0.png", "deepfake/train/1_fake/033_097_0.png"),
    ],
)
def test_a_forgery_and_what_it_was_made_of_are_one_group(name, real, fake, tmp_path):
    files, _ = labelled_files(name, TREES[name](tmp_path / "data"))
    groups = [place.split("/")[1] for end in (real, fake) for place, _ in files if place.endswith(end)]
    assert len(groups) == 2
    assert len(set(groups)) == 1


def test_a_picture_that_stands_alone_has_no_group_and_a_long_video_some_frames(tmp_path):
    files, _ = labelled_files("cddb", TREES["cddb"](tmp_path / "cddb"))
    assert [place for place, _ in files if place.startswith("gaugan/")] == [
        "gaugan/gaugan_train_1_fake_0.png",
        "gaugan/gaugan_train_1_fake_1.png",
    ]
    files, _ = labelled_files("deepfakebench", TREES["deepfakebench"](tmp_path / "bench"))
    frames = [path.stem for place, path in files if place.startswith("celebdfv2-fake/")]
    assert frames == ["0", "2", "5", "7", "9", "11", "14", "16"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("cddb", r"holds no TASK/\{train,val\}"),
        ("deepfakebench", "has no SET.json, nor has its dataset_json"),
        ("dfdc", "has no dfdc_train_part_N/metadata.json and no test/labels.csv"),
        ("faceforensics", "has no train.json, nor has its splits"),
        ("forgerynet", "has no Training/image_list.txt and no Validation/image_list.txt"),
    ],
)
def test_a_folder_of_another_layout_is_one_line_that_says_what_was_expected(name, said, tmp_path):
    (tmp_path / "pictures").mkdir()
    with pytest.raises(LayoutError, match=said) as error:
        labelled_files(name, tmp_path)
    assert "\n" not in str(error.value)
    assert str(tmp_path) in str(error.value)


def test_a_folder_that_is_not_there_and_a_layout_that_is_none_are_one_line(tmp_path):
    with pytest.raises(LayoutError, match="is no folder: name the one that holds the data"):
        labelled_files("dfdc", tmp_path / "nowhere")
    with pytest.raises(LayoutError, match="choose of cddb, deepfakebench, dfdc, faceforensics, forgerynet"):
        labelled_files("dfcd", tmp_path)


def test_an_import_loads_neither_torch_nor_the_laboratory():
    modules = "sys, deploy.cli.memory, deploy.client.importing, updater.data.layouts.layouts"
    said = f"import {modules}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "torch" not in loaded
    assert not [name for name in loaded if name.startswith("updater.benchmark")]


KEYS = st.lists(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=3), max_size=12)
SPLITS = ["train", "val", "test"]
ENTRIES = st.lists(st.tuples(st.sampled_from("abcd"), st.sampled_from(SPLITS)), max_size=20)


@given(KEYS)
def test_items_are_of_one_group_exactly_if_keys_link_them(keys):
    # The slow way: what an item shares keys with, until nothing more comes.
    expected = []
    for first in keys:
        reached = set(first)
        while any(reached & set(of) and not set(of) <= reached for of in keys):
            reached |= {key for of in keys if reached & set(of) for key in of}
        expected.append(min(reached))
    assert group_items(keys) == expected


@given(ENTRIES)
def test_no_group_is_left_in_two_splits_and_all_that_goes_is_counted(drawn):
    entries = [Entry(Path(str(n)), 0, "real", group, split) for n, (group, split) in enumerate(drawn)]
    tally = Tally()
    kept = kept_apart(entries, tally)
    homes = {(entry.group, entry.split) for entry in kept}
    assert len({group for group, _ in homes}) == len(homes)
    assert {entry.group for entry in kept} == {entry.group for entry in entries}
    assert sum(int(note.split()[0]) for note in tally.notes()) == len(entries) - len(kept)
    assert [entry for entry in entries if entry.split == "test"] == [e for e in kept if e.split == "test"]


@pytest.mark.parametrize("listed", ["../a", "a/../../b", "/a", "\\a", "", ".", "a\0b", "..\\a"])
def test_a_name_that_leads_out_of_its_folder_is_none(listed):
    assert below(Path("/data"), listed) is None


def test_names_have_either_slash():
    assert below(Path("/data"), "a\\b/c.mp4") == Path("/data/a/b/c.mp4")


def test_a_name_that_no_disk_can_hold_is_not_there(tmp_path):
    assert not is_there(tmp_path / ("x" * 5000))
    assert is_there(Path(__file__))


def test_a_tally_tells_each_kind_once_with_its_count_and_its_first():
    tally = Tally()
    for name in ("a", "b"):
        tally.add("files are missing", name)
    tally.add("rows are odd", "c")
    assert tally.notes() == ("2 files are missing (first: a)", "1 rows are odd (first: c)")
    assert (tally["files are missing"], tally["others"]) == (2, 0)


def test_what_a_list_names_cannot_break_a_line_or_a_terminal():
    tally = Tally()
    tally.add("files are missing", "a\n\x1b[2Jb")
    assert tally.notes() == ("1 files are missing (first: a??[2Jb)",)


def test_half_of_the_files_is_enough():
    refuse_another_release("list", 1, 2)
    refuse_another_release("list", 0, 0)
    with pytest.raises(LayoutError, match="names 3 files; of these, 1"):
        refuse_another_release("list", 1, 3)


def test_a_list_that_cannot_be_read_is_one_line(tmp_path):
    with pytest.raises(LayoutError, match="cannot be read"):
        list(lines_of(tmp_path))
    with pytest.raises(LayoutError, match="cannot be read"):
        json_in(tmp_path / "none.json")
    (tmp_path / "a").write_bytes(b"\xff\xfe\n\n one \n")
    assert list(lines_of(tmp_path / "a"))[1:] == ["one"]
    with pytest.raises(LayoutError, match="is no JSON"):
        json_in(tmp_path / "a")

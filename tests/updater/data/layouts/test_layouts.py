"""What of a published set becomes labelled files, and what a folder that is none of it is told."""

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from published import TREES

from updater.data.layouts.entries import LayoutError
from updater.data.layouts.layouts import LAYOUTS, labelled_files, read_layout

IMPORTED = {
    "cddb": {"real": 4, "gaugan": 2, "deepfake": 2},
    "deepfakebench": {"real": 10, "celebdfv2-fake": 8},
    "dfdc": {"real": 2, "dfdc": 2},
    "faceforensics": {"real": 4, "deepfakes": 4, "faceswap": 4},
    "forgerynet": {"real": 2, "faceshifter": 2, "talking-head-video": 2},
}
REPORTED = {
    "cddb": "test",
    "deepfakebench": "test",
    "dfdc": "test",
    "faceforensics": "test",
    "forgerynet": "val",
}


def test_every_layout_has_a_tree_here():
    assert TREES.keys() == LAYOUTS.keys() == IMPORTED.keys()


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_set_is_imported_by_family_but_for_what_it_reports_by(name: str, tmp_path: Path) -> None:
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
def test_a_forgery_and_what_it_was_made_of_are_one_group(
    name: str, real: str, fake: str, tmp_path: Path
) -> None:
    files, _ = labelled_files(name, TREES[name](tmp_path / "data"))
    groups = [place.split("/")[1] for end in (real, fake) for place, _ in files if place.endswith(end)]
    assert len(groups) == 2
    assert len(set(groups)) == 1


def test_a_picture_that_stands_alone_has_no_group_and_a_long_video_some_frames(tmp_path: Path) -> None:
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
def test_a_folder_of_another_layout_is_one_line_that_says_what_was_expected(
    name: str, said: str, tmp_path: Path
) -> None:
    (tmp_path / "pictures").mkdir()
    with pytest.raises(LayoutError, match=said) as error:
        labelled_files(name, tmp_path)
    assert "\n" not in str(error.value)
    assert str(tmp_path) in str(error.value)


def test_a_folder_that_is_not_there_and_a_layout_that_is_none_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(LayoutError, match="is no folder: name the one that holds the data"):
        labelled_files("dfdc", tmp_path / "nowhere")
    with pytest.raises(LayoutError, match="choose of cddb, deepfakebench, dfdc, faceforensics, forgerynet"):
        labelled_files("dfcd", tmp_path)


def test_an_import_loads_neither_torch_nor_the_laboratory() -> None:
    modules = "sys, deploy.cli.memory, deploy.client.importing, updater.data.layouts.layouts"
    said = f"import {modules}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "torch" not in loaded
    assert not [name for name in loaded if name.startswith("updater.benchmark")]

"""DFDC's parts and test become entries, a fake in the group of its original."""

import json
from pathlib import Path

import psutil
import pytest
from makers import noted, touch

from updater.data.layouts.dfdc import load_dfdc
from updater.data.layouts.entries import LayoutError

PARTS = {
    2: {
        "aa.mp4": {"label": "REAL", "split": "train", "original": None},
        "ab.mp4": {"label": "FAKE", "split": "train", "original": "aa.mp4"},
        "ac.mp4": {"label": "FAKE", "split": "train", "original": "aa.mp4"},
        "odd.mp4": {"label": "MAYBE"},
        "gone.mp4": {"label": "REAL"},
    },
    10: {name: {"label": "FAKE", "original": "lost.mp4"} for name in ("ba.mp4", "bb.mp4")},
}


@pytest.fixture
def data(tmp_path):
    for number, files in PARTS.items():
        place = tmp_path / f"dfdc_train_part_{number}"
        touch(place / "metadata.json").write_text(json.dumps(files))
        for name in files:
            if name != "gone.mp4":
                touch(place / name)
    touch(tmp_path / "test/labels.csv").write_text("filename,label\nta.mp4,1\ntb.mp4,0\ntc.mp4,2\n")
    for name in ("ta.mp4", "tb.mp4", "tc.mp4"):
        touch(tmp_path / "test" / name)
    return tmp_path


def test_parts_train_in_the_order_of_their_numbers_and_the_test_tests(data):
    assert [(e.path.name, e.label, e.family, e.split) for e in load_dfdc(data).entries] == [
        ("aa.mp4", 0, "real", "train"),
        ("ab.mp4", 1, "DFDC", "train"),
        ("ac.mp4", 1, "DFDC", "train"),
        ("ba.mp4", 1, "DFDC", "train"),
        ("bb.mp4", 1, "DFDC", "train"),
        ("ta.mp4", 1, "DFDC", "test"),
        ("tb.mp4", 0, "real", "test"),
    ]


def test_a_fake_is_in_the_group_of_its_original_whether_that_is_there_or_not(data):
    groups = {e.path.name: e.group for e in load_dfdc(data).entries}
    assert groups["aa.mp4"] == groups["ab.mp4"] == groups["ac.mp4"]
    assert groups["ba.mp4"] == groups["bb.mp4"]
    assert len(set(groups.values())) == 4


def test_an_original_of_the_test_takes_its_fakes_out_of_training(data):
    (data / "test/labels.csv").write_text("filename,label\nta.mp4,1\nlost.mp4,0\n")
    touch(data / "test/lost.mp4")
    listing = load_dfdc(data)
    assert {e.path.name for e in listing.entries if e.split == "train"} == {"aa.mp4", "ab.mp4", "ac.mp4"}
    assert noted(listing, "left out of train")[0].startswith("2 ")


def test_what_is_missing_or_has_no_label_is_left_out_and_counted(data):
    listing = load_dfdc(data)
    assert noted(listing, "missing")[0].startswith("1 ")
    assert noted(listing, "neither real nor fake")[0].startswith("2 ")


def test_names_that_lead_elsewhere_are_left_out(data):
    touch(data / "secret.mp4")
    (data / "test/labels.csv").write_text(f"filename,label\n../secret.mp4,1\n{data}/secret.mp4,1\nta.mp4,1\n")
    assert not [e for e in load_dfdc(data).entries if e.path.name == "secret.mp4"]


def test_one_half_alone_will_do_but_not_neither(data, tmp_path):
    (data / "test/labels.csv").unlink()
    assert {e.split for e in load_dfdc(data).entries} == {"train"}
    with pytest.raises(LayoutError, match="unpack one"):
        load_dfdc(tmp_path / "elsewhere")


def test_a_part_with_less_than_half_of_its_files_is_one_line(data):
    for name in ("aa.mp4", "ab.mp4"):
        (data / "dfdc_train_part_2" / name).unlink()
    with pytest.raises(LayoutError, match="names 4 files; of these, 1"):
        load_dfdc(data)


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("dfdc_train_part_2/metadata.json", "[]"),
        ("dfdc_train_part_2/metadata.json", "{"),
        ("test/labels.csv", "filename,label\n" + "x" * 200_000 + ",1\n"),
    ],
)
def test_a_list_that_is_none_is_one_line(data, file, content):
    (data / file).write_text(content)
    with pytest.raises(LayoutError, match=file) as error:
        load_dfdc(data)
    assert "\n" not in str(error.value)
    assert data / file not in {Path(one.path) for one in psutil.Process().open_files()}

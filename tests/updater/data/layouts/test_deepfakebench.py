"""DeepfakeBench's lists become videos of sorted frames below another root, and no group is in two splits."""

import json

import pytest
from makers import noted, touch

from updater.data.layouts.deepfakebench import load_deepfakebench
from updater.data.layouts.entries import LayoutError

ROOT = "D:\\data\\rgb\\"


"""where the frames were on the machine that wrote the list"""


def video(folder, place, label, numbers, masks=False):
    """A video as the lists have it, its frames in no order, and its files below the folder."""
    for number in numbers:
        touch(folder / place / "frames" / f"{number}.png")
        if masks:
            touch(folder / place / "masks" / f"{number}.png")
    there = f"{ROOT}{place}\\frames\\".replace("/", "\\")
    return {
        "label": label,
        "frames": [f"{there}{number}.png" for number in numbers],
        "masks": [f"{there.replace('frames', 'masks')}{number}.png" for number in numbers] if masks else [],
    }


@pytest.fixture
def data(tmp_path):
    return tmp_path / "rgb"


def written(data, name, content):
    path = data.parent / f"{name}.json"
    path.write_text(json.dumps(content))
    return path


def faceforensics(data):
    def at(rate, name, label, numbers):
        return {name: video(data, f"FF/{label}/{rate}/{name}", label, numbers, label != "FF-real")}

    return {
        "FaceForensics++": {
            "FF-real": {
                "train": {rate: at(rate, "000", "FF-real", [100, 20, 3]) for rate in ("raw", "c23", "c40")},
                "test": {rate: at(rate, "010", "FF-real", [1, 2]) for rate in ("raw", "c23", "c40")},
                "val": {"raw": {}, "c23": {}, "c40": {}},
            },
            "FF-DF": {
                "train": {rate: at(rate, "000_003", "FF-DF", [7, 30, 4]) for rate in ("raw", "c23", "c40")},
                "test": {rate: at(rate, "010_011", "FF-DF", [5]) for rate in ("raw", "c23", "c40")},
                "val": {"raw": {}, "c23": {}, "c40": {}},
            },
        }
    }


def by_folder(listing):
    return {entry.path.parent.name: entry for entry in listing.entries}


def test_frames_are_in_the_order_of_the_numbers_in_their_names(data):
    found = by_folder(load_deepfakebench(written(data, "FF", faceforensics(data)), data))
    assert [picture.name for picture in found["000"].pictures] == ["3.png", "20.png", "100.png"]
    assert found["000"].frames == 3


def test_another_root_and_backslashes_are_found_below_the_folder(data):
    path = written(data, "FF", faceforensics(data))
    assert ROOT.replace("\\", "\\\\") in path.read_text()
    expected = load_deepfakebench(path, data)
    assert all(picture.is_file() for entry in expected.entries for picture in entry.pictures)
    for root in (data.parent, data / "FF"):
        assert load_deepfakebench(path, root) == expected
    path.write_text(path.read_text().replace("D:\\\\data\\\\", "/home/somebody/").replace("\\\\", "/"))
    assert load_deepfakebench(path, data) == expected


def test_a_label_that_ends_in_real_is_real_and_every_other_is_forged(data):
    labels = ["CelebDFv1_real", "DFDC_Real", "YouTube-real", "real", "DFDC_Fake", "unreal", "FF-F2F"]
    content = {of: {"test": {f"v{n}": video(data, f"{n}", of, [1])}} for n, of in enumerate(labels)}
    content = {"S": content}
    assert [(e.label, e.family) for e in load_deepfakebench(written(data, "S", content), data).entries] == [
        *[(0, "real")] * 4,
        *[(1, "DFDC_Fake"), (1, "unreal"), (1, "FF-F2F")],
    ]


def test_masks_belong_to_the_frames_of_their_stems(data):
    content = faceforensics(data)
    (data / "FF/FF-DF/c23/000_003/masks/30.png").unlink()
    found = by_folder(load_deepfakebench(written(data, "FF", content), data))
    assert [mask and mask.name for mask in found["000_003"].masks] == ["4.png", "7.png", None]
    assert found["000"].masks == ()


def test_one_rate_is_read_and_one_that_is_not_there_is_one_line(data):
    path = written(data, "FF", faceforensics(data))
    assert {e.path.parts[-3] for e in load_deepfakebench(path, data, "c40").entries} == {"c40"}
    content = faceforensics(data)
    del content["FaceForensics++"]["FF-DF"]["test"]["raw"]
    with pytest.raises(LayoutError, match="has c23, c40 and no videos at raw"):
        load_deepfakebench(written(data, "FF", content), data, "raw")


def test_a_target_and_its_forgeries_are_one_group(data):
    groups = {
        name: e.group
        for name, e in by_folder(load_deepfakebench(written(data, "FF", faceforensics(data)), data)).items()
    }
    assert groups["000"] == groups["000_003"]
    assert groups["010"] == groups["010_011"]
    assert groups["000"] != groups["010"]
    names = ["id0_0000", "id0_id1_0000", "id0_id2_0000", "id0_0001", "id1_0000"]
    content = {"Celeb-DF-v2": {"x_fake": {"test": {n: video(data, f"c/{n}", "x_fake", [1]) for n in names}}}}
    listing = load_deepfakebench(written(data, "C", content), data)
    groups = {name: e.group for name, e in by_folder(listing).items()}
    assert groups["id0_0000"] == groups["id0_id1_0000"] == groups["id0_id2_0000"]
    assert len(set(groups.values())) == 3


def test_reals_that_stand_in_all_splits_are_kept_in_the_test_and_told(data):
    reals = {name: video(data, f"r/{name}", "UADFV_Real", [1]) for name in ("a", "b")}
    fakes = {name: video(data, f"f/{name}", "UADFV_Fake", [1]) for name in ("fa", "fb")}
    content = {
        "UADFV": {
            "UADFV_Real": {"train": reals, "val": reals, "test": reals},
            "UADFV_Fake": {"train": {"fa": fakes["fa"]}, "test": {"fb": fakes["fb"]}},
        }
    }
    listing = load_deepfakebench(written(data, "UADFV", content), data)
    assert sorted((e.path.parent.name, e.split) for e in listing.entries) == [
        *(("a", "test"), ("b", "test"), ("fa", "train"), ("fb", "test"))
    ]
    assert [note[:1] for note in noted(listing, "their group is in test")] == ["2", "2"]


def test_a_split_that_is_one_bare_entry_is_left_out_and_told(data):
    test, val = (video(data, name, "DFDC_Real", [1]) for name in "ab")
    content = {"DFDC": {"DFDC_Real": {"test": {"a": test}, "val": val}}}
    listing = load_deepfakebench(written(data, "DFDC", content), data)
    assert [e.split for e in listing.entries] == ["test"]
    assert "DFDC/DFDC_Real/val" in noted(listing, "one bare entry")[0]


def test_actors_of_deeperforensics_are_no_reals(data):
    real = {"W025": video(data, "source_videos/W025", "DF_real", [1])}
    content = {
        "DeeperForensics-1.0": {
            "DF_real": {"train": real, "val": real, "test": real},
            "DF_fake": {"train": {"000_W025": video(data, "m/000_W025", "DF_fake", [1])}},
        }
    }
    for name in ("DeeperForensics-1.0", "another name"):
        listing = load_deepfakebench(written(data, "D", {name: content["DeeperForensics-1.0"]}), data)
        assert [e.label for e in listing.entries] == [1]
        assert noted(listing, "actors")[0].startswith("3 ")


def test_missing_frames_are_left_out_and_a_video_without_any_is_too(data):
    videos = {name: video(data, f"v/{name}", "x", [1, 2]) for name in ("a", "b", "c")}
    (data / "v/a/frames/1.png").unlink()
    (data / "v/b/frames/1.png").unlink()
    (data / "v/b/frames/2.png").unlink()
    path = written(data, "S", {"S": {"x": {"test": videos}}})
    listing = load_deepfakebench(path, data)
    assert {name: entry.frames for name, entry in by_folder(listing).items()} == {"a": 1, "c": 2}
    assert noted(listing, "frames are listed and missing")[0].startswith("3 ")
    assert noted(listing, "no frame that is there")[0].startswith("1 ")
    (data / "v/a/frames/2.png").unlink()
    with pytest.raises(LayoutError, match="names 3 files; of these, 1"):
        load_deepfakebench(path, data)


def test_a_folder_that_holds_none_of_it_is_one_line(data, tmp_path):
    path = written(data, "FF", faceforensics(data))
    with pytest.raises(LayoutError, match="of which no ending is below") as error:
        load_deepfakebench(path, tmp_path / "elsewhere")
    assert "\n" not in str(error.value)


def test_paths_that_lead_out_of_the_folder_are_missing(data):
    touch(data.parent / "secret/1.png")
    strange = {
        "label": "x",
        "frames": ["../secret/1.png", "..\\secret\\1.png", "/../secret/1.png", "", "\0", "1" * 5000],
    }
    content = {"S": {"x": {"test": {"a": video(data, "a", "x", [1]), "b": strange}}}}
    (only,) = load_deepfakebench(written(data, "S", content), data).entries
    assert only.path.is_relative_to(data)


def test_videos_whose_labels_contradict_or_that_have_no_frames_are_left_out(data):
    videos = {"a": video(data, "a", "S_real", [1]), "b": video(data, "b", "S_fake", [1])}
    videos |= {"c": {"label": "S_real"}, "d": {"label": "S_real", "frames": [1]}, "e": 5}
    listing = load_deepfakebench(written(data, "S", {"S": {"S_real": {"test": videos}}}), data)
    assert len(listing.entries) == 1
    assert noted(listing, "labels alone")[0].startswith("1 ")
    assert noted(listing, "no list of frames")[0].startswith("3 ")


@pytest.mark.parametrize("content", [[], {"S": []}, {"S": {"x": []}}, {}, {"S": {"x": {"other": {}}}}])
def test_a_file_that_is_none_of_these_lists_is_one_line(data, content):
    data.mkdir()
    with pytest.raises(LayoutError, match="SET, LABEL"):
        load_deepfakebench(written(data, "S", content), data)

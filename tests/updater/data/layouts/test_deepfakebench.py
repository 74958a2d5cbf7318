"""DeepfakeBench's lists become videos of sorted frames below another root, and no group is in two splits."""

import json

import pytest
from makers import noted, touch

from updater.data.layouts.deepfakebench import load_deepfakebench
from updater.data.layouts.entries import LayoutError
from updater.data.layouts.faceforensics import load_faceforensics

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
        masks = label != "FF-real"
        return {name: video(data, f"FF/{label}/{rate}/{name}", label, numbers, masks)}

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
    content = {
        "S": {label: {"test": {f"v{n}": video(data, f"{n}", label, [1])}} for n, label in enumerate(labels)}
    }
    listing = load_deepfakebench(written(data, "S", content), data)
    assert [(e.label, e.family) for e in listing.entries] == [
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
    groups = {
        name: e.group for name, e in by_folder(load_deepfakebench(written(data, "C", content), data)).items()
    }
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
    content = {
        "DFDC": {
            "DFDC_Real": {
                "test": {"a": video(data, "a", "DFDC_Real", [1])},
                "val": video(data, "b", "DFDC_Real", [1]),
            }
        }
    }
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


# FaceForensics++'s trees become originals and both forgeries of each pair, a pair a group.
PAIRS = {"train": [["071", "054"], ["087", "081"]], "val": [["720", "672"]], "test": [["953", "974"]]}


def made(folder, method, rate):
    for pairs in PAIRS.values():
        for a, b in pairs:
            for name in (f"{a}_{b}", f"{b}_{a}"):
                touch(folder / "manipulated_sequences" / method / rate / "videos" / f"{name}.mp4")
                if method != "FaceShifter":
                    touch(folder / "manipulated_sequences" / method / "masks/videos" / f"{name}.mp4")


@pytest.fixture
def faces(tmp_path):
    for split, pairs in PAIRS.items():
        touch(tmp_path / f"splits/{split}.json").write_text(json.dumps(pairs))
        for name in (name for pair in pairs for name in pair):
            touch(tmp_path / f"original_sequences/youtube/c23/videos/{name}.mp4")
            touch(tmp_path / f"original_sequences/youtube/c40/videos/{name}.mp4")
    made(tmp_path, "Deepfakes", "c23")
    made(tmp_path, "FaceShifter", "c23")
    made(tmp_path, "Face2Face", "c40")
    touch(tmp_path / "original_sequences/actors/c23/videos/01__exit_phone_room.mp4")
    touch(tmp_path / "manipulated_sequences/DeepFakeDetection/c23/videos/01_02__exit_phone_room__AB.mp4")
    return tmp_path


def test_a_pair_is_two_originals_and_two_forgeries_a_method_in_one_group_and_split(faces):
    listing = load_faceforensics(faces)
    for split, pairs in PAIRS.items():
        for a, b in pairs:
            of_pair = [e for e in listing.entries if {a, b} & set(e.path.stem.split("_"))]
            assert {(e.split, e.group) for e in of_pair} == {(split, min(a, b))}
            assert sorted((e.path.stem, e.label, e.family) for e in of_pair) == sorted(
                [
                    *((name, 0, "real") for name in (a, b)),
                    *((f"{a}_{b}", 1, method) for method in ("Deepfakes", "FaceShifter")),
                    *((f"{b}_{a}", 1, method) for method in ("Deepfakes", "FaceShifter")),
                ]
            )
    assert len(listing.entries) == 4 * 6


def test_a_mask_is_the_one_set_of_all_rates_and_faceshifter_has_none(faces):
    for entry in load_faceforensics(faces).entries:
        if entry.family == "Deepfakes":
            assert [mask.parent.parent.name for mask in entry.masks if mask] == ["masks"]
            assert [mask.name for mask in entry.masks if mask] == [entry.path.name]
        else:
            assert entry.masks == ()


def test_another_rate_is_another_listing(faces):
    listing = load_faceforensics(faces, "c40")
    assert {e.family for e in listing.entries} == {"real", "Face2Face"}
    assert {e.path.parent.parent.name for e in listing.entries} == {"c40"}
    with pytest.raises(LayoutError, match="raw/videos names 8 files; of these, 0"):
        load_faceforensics(faces, "raw")


def test_actors_and_what_no_pair_names_are_not_read_and_told(faces):
    listing = load_faceforensics(faces)
    assert not [e for e in listing.entries if "exit_phone_room" in e.path.name]
    assert "DeepFakeDetection" in noted(listing, "no video that a pair names")[0]


def test_a_video_in_two_pairs_joins_them_and_stays_in_the_test(faces):
    (faces / "splits/train.json").write_text(json.dumps([["071", "054"], ["087", "953"]]))
    listing = load_faceforensics(faces)
    assert {e.group for e in listing.entries if "953" in e.path.stem} == {"087"}
    assert {e.split for e in listing.entries if "953" in e.path.stem} == {"test"}
    assert noted(listing, "left out of train")[0].startswith("2 "), "the reals 087 and 953"


def test_what_is_missing_is_left_out_and_counted_and_half_of_it_is_one_line(faces):
    videos = faces / "manipulated_sequences/Deepfakes/c23/videos"
    names = sorted(path.name for path in videos.iterdir())
    for name in names[:4]:
        (videos / name).unlink()
    listing = load_faceforensics(faces)
    assert noted(listing, "missing")[0].startswith("4 ")
    assert sum(e.family == "Deepfakes" for e in listing.entries) == 4
    (videos / names[4]).unlink()
    with pytest.raises(LayoutError, match="names 8 files; of these, 3"):
        load_faceforensics(faces)


@pytest.mark.parametrize("content", ["{}", '[["1"]]', '[["../../x", "1"]]', "[[1, 2]]", "[[", "[" * 100_000])
def test_a_list_that_holds_no_pairs_is_one_line(faces, content):
    (faces / "splits/val.json").write_text(content)
    with pytest.raises(LayoutError, match=r"val\.json") as error:
        load_faceforensics(faces)
    assert "\n" not in str(error.value)


def test_splits_may_lie_in_the_folder_itself_and_must_lie_somewhere(faces):
    before = load_faceforensics(faces)
    for split in PAIRS:
        (faces / f"splits/{split}.json").rename(faces / f"{split}.json")
    assert load_faceforensics(faces) == before
    (faces / "test.json").unlink()
    with pytest.raises(LayoutError, match=r"no test\.json"):
        load_faceforensics(faces)

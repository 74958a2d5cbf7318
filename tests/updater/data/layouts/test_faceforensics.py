"""FaceForensics++'s trees become originals and both forgeries of each pair, a pair a group."""

import json

import pytest
from makers import noted, touch

from updater.data.layouts.entries import LayoutError
from updater.data.layouts.faceforensics import load_faceforensics

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

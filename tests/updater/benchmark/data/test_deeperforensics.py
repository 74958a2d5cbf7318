"""DeeperForensics' trees become forgeries beside originals of FaceForensics++ alone."""

from collections import Counter

import pytest
from makers import noted, touch

from updater.benchmark.data.deeperforensics import VARIANTS, load_deeperforensics, load_hidden
from updater.data.layouts.entries import LayoutError
from updater.distortions.distortion import Step

SPLITS = {
    "train": ["000_W025.mp4", "003_W025.mp4", "010_M004.mp4"],
    "val": ["020_M011.mp4"],
    "test": ["030_W101.mp4", "031_M112.mp4"],
}
META = {
    "000_W025": "GNC:3",
    "003_W025": "VC:1",
    "010_M004": "JPEG:5",
    "020_M011": "BW:2",
    "030_W101": "CC:4",
    "031_M112": "CS:1",
}
ORIGINALS = "original_sequences/youtube/c23/videos"


def meta_file(folder, variant):
    return folder / f"lists/manipulated_videos_distortions_meta/manipulated_videos_{variant}_meta.txt"


@pytest.fixture
def data(tmp_path):
    folder = tmp_path / "DeeperForensics-1.0"
    for split, names in SPLITS.items():
        touch(folder / f"lists/splits/{split}.txt").write_text("\n".join(names) + "\n")
    for variant in ("end_to_end", "end_to_end_random_level", "end_to_end_mix_3_distortions"):
        for names in SPLITS.values():
            for name in names:
                touch(folder / "manipulated_videos" / variant / name)
    lines = [f"end_to_end_random_level/{name}.mp4 {words}" for name, words in META.items()]
    touch(meta_file(folder, "end_to_end_random_level")).write_text("\n".join(lines))
    lines = [f"manipulated_videos\\{name}.mp4 {words} VC:2 GB:3" for name, words in META.items()]
    touch(meta_file(folder, "end_to_end_mix_3_distortions")).write_text("\n".join(lines))
    touch(folder / "source_videos/W025/light_up/happy/camera_front/W025_light_up_happy_camera_front.mp4")
    return folder


@pytest.fixture
def originals(tmp_path):
    folder = tmp_path / "FaceForensics++"
    for names in SPLITS.values():
        for name in names:
            touch(folder / ORIGINALS / f"{name[:3]}.mp4")
    touch(folder / ORIGINALS / "999.mp4")
    touch(folder / "original_sequences/actors/c23/videos/01__exit_phone_room.mp4")
    return folder


def test_each_forgery_stands_beside_the_original_of_its_target_in_the_same_split(data, originals):
    listing = load_deeperforensics(data, originals)
    assert listing.notes == ()
    assert {(e.path.stem, e.label, e.split) for e in listing.entries} == {
        (stem, label, split)
        for split, names in SPLITS.items()
        for name in names
        for stem, label in ((name[:8], 1), (name[:3], 0))
    }
    assert {e.family for e in listing.entries if e.label} == {"DF-VAE"}


def test_the_real_carries_the_distortions_of_its_forgery_and_has_yet_to_get_them(data, originals):
    found = {e.path.stem: e for e in load_deeperforensics(data, originals, "mix3").entries}
    expected = (Step("JPEG", 5), Step("VC", 2), Step("GB", 3))
    assert (found["010_M004"].distortions, found["010_M004"].distorted) == (expected, True)
    assert (found["010"].distortions, found["010"].distorted) == (expected, False)


def test_without_distortions_nothing_is_distorted(data, originals):
    entries = load_deeperforensics(data, originals).entries
    assert {(e.distortions, e.distorted) for e in entries} == {((), False)}


def test_a_method_of_faceforensics_is_in_the_splits_of_the_targets_beside_the_same_reals(data, originals):
    for names in SPLITS.values():
        for name in names:
            touch(originals / f"manipulated_sequences/FaceSwap/c23/videos/{name[:3]}_777.mp4")
    std, listing = load_deeperforensics(data, originals), load_deeperforensics(data, originals, "fs")
    assert listing.notes == ()
    assert [e for e in listing.entries if not e.label] == [e for e in std.entries if not e.label]
    found, wanted = ([(e.path.stem[:3], e.split, e.group) for e in of.entries] for of in (listing, std))
    assert found == wanted
    assert {(e.family, e.path.stem[4:]) for e in listing.entries if e.label} == {("FaceSwap", "777")}
    with pytest.raises(LayoutError, match="manipulated_sequences/NeuralTextures/c23/videos is missing"):
        load_deeperforensics(data, originals, "nt")


def test_an_actor_is_a_group_with_all_targets_that_got_the_face(data, originals):
    groups = {e.path.stem: e.group for e in load_deeperforensics(data, originals).entries}
    assert groups["000_W025"] == groups["003_W025"] == groups["000"] == groups["003"]
    assert len({groups[name] for name in ("000", "010", "020", "030", "031")}) == 5


def test_an_actor_in_two_splits_stays_in_the_test_alone(data, originals):
    touch(data / "manipulated_videos/end_to_end/032_W025.mp4")
    touch(originals / ORIGINALS / "032.mp4")
    with (data / "lists/splits/test.txt").open("a") as names:
        names.write("032_W025.mp4\n")
    listing = load_deeperforensics(data, originals)
    assert {e.path.stem for e in listing.entries if e.split == "train"} == {"010_M004", "010"}
    assert {"032_W025", "032"} <= {e.path.stem for e in listing.entries if e.split == "test"}
    assert noted(listing, "left out of train")[0].startswith("4 ")


@pytest.mark.parametrize(
    "where", ["source_videos", ".", "source_videos/W025", "actors", "renamed", "flat", "linked"]
)
def test_actors_given_as_reals_are_refused(data, originals, where):
    reals = data / where
    if where == "actors":
        reals = originals / "original_sequences/actors/c23/videos"
    if where == "renamed":
        (data / "source_videos").rename(reals)
    if where in ("flat", "linked"):
        reals = touch(data / "source_videos/flat/000.mp4").parent
    if where == "linked":
        (data / "reals").symlink_to(reals)
        reals = data / "reals"
    with pytest.raises(LayoutError, match="holds recordings of actors") as error:
        load_deeperforensics(data, reals)
    assert "\n" not in str(error.value)


def test_originals_at_another_rate_are_refused(data, originals):
    other = originals / "original_sequences/youtube/c40/videos"
    (originals / ORIGINALS).parent.rename(other.parent)
    with pytest.raises(LayoutError, match="at c40"):
        load_deeperforensics(data, other)
    with pytest.raises(LayoutError, match=r"holds no TTT\.mp4"):
        load_deeperforensics(data, originals)


def test_the_folder_of_originals_itself_may_be_named(data, originals):
    assert load_deeperforensics(data, originals / ORIGINALS) == load_deeperforensics(data, originals)


def test_what_is_missing_is_left_out_and_counted(data, originals):
    (data / "manipulated_videos/end_to_end/000_W025.mp4").unlink()
    (originals / ORIGINALS / "010.mp4").unlink()
    listing = load_deeperforensics(data, originals)
    assert Counter(e.label for e in listing.entries) == {1: 5, 0: 4}
    assert noted(listing, "files are listed and missing")[0].startswith("1 ")
    assert noted(listing, "originals")[0].startswith("1 ")


def test_a_video_without_a_line_of_distortions_is_left_out_and_counted(data, originals):
    meta = meta_file(data, "end_to_end_random_level")
    meta.write_text("\n".join(meta.read_text().splitlines()[1:]))
    listing = load_deeperforensics(data, originals, "rand")
    assert "000_W025" not in {e.path.stem for e in listing.entries}
    assert noted(listing, "no line")[0].startswith("1 ")


def test_fewer_than_half_of_the_videos_or_of_their_originals_is_one_line(data, originals):
    for name in ("010", "020", "030", "031"):
        (originals / ORIGINALS / f"{name}.mp4").unlink()
    with pytest.raises(LayoutError, match="by its targets, names 6 files; of these, 2"):
        load_deeperforensics(data, originals)
    for names in list(SPLITS.values())[1:]:
        for name in [*names, "000_W025.mp4"]:
            (data / "manipulated_videos/end_to_end" / name).unlink(missing_ok=True)
    with pytest.raises(LayoutError, match="names 6 files; of these, 2"):
        load_deeperforensics(data, originals)


def test_a_variant_that_is_none_or_not_there_is_one_line(data, originals):
    with pytest.raises(LayoutError, match=r"no variant.*std, sing, rand, mix2, mix3, mix4"):
        load_deeperforensics(data, originals, "mix5")
    with pytest.raises(LayoutError, match="end_to_end_level_5 is missing"):
        load_deeperforensics(data, originals, "sing")
    assert VARIANTS["sing"] == "end_to_end_level_5"


@pytest.mark.parametrize("words", ["XX:1", "CS:6", "CS:0", "CS", "CS:one", "CS:" + "1" * 5000, "CS:1 :2", ""])
def test_a_distortion_or_a_level_that_is_none_names_its_list_and_line(data, originals, words):
    meta = meta_file(data, "end_to_end_random_level")
    meta.write_text(meta.read_text() + f"\nend_to_end_random_level/031_M112.mp4 {words}\n")
    with pytest.raises(LayoutError, match=r"_meta\.txt, line 7: .*(TYPE:LEVEL|no distortion|no level)"):
        load_deeperforensics(data, originals, "rand")


def test_a_types_name_in_another_group_of_distortions_is_none_of_the_data_set(data, originals):
    meta = meta_file(data, "end_to_end_random_level")
    meta.write_text(meta.read_text() + "\nend_to_end_random_level/031_M112.mp4 motion_blur:2\n")
    with pytest.raises(LayoutError, match="with a type of CS, CC"):
        load_deeperforensics(data, originals, "rand")


def test_names_that_are_none_are_left_out_and_counted(data, originals):
    with (data / "lists/splits/val.txt").open("a") as names:
        names.write("../../../etc/passwd\n31_M112.mp4\n020_M011.mp4\n")
    listing = load_deeperforensics(data, originals)
    assert noted(listing, "TTT_S")[0].startswith("2 ")
    assert noted(listing, "again")[0].startswith("1 ")
    assert len(listing.entries) == 12


def test_a_list_of_splits_that_is_missing_is_one_line(data, originals):
    (data / "lists/splits/val.txt").unlink()
    with pytest.raises(LayoutError, match=r"val\.txt cannot be read"):
        load_deeperforensics(data, originals)


def test_a_hidden_set_is_a_test_of_reals_and_fakes(tmp_path):
    touch(tmp_path / "real/a.mp4")
    with pytest.raises(LayoutError, match="fake"):
        load_hidden(tmp_path)
    touch(tmp_path / "fake/a.mp4")
    assert [(e.label, e.split, e.group) for e in load_hidden(tmp_path).entries] == [
        (0, "test", "real/a.mp4"),
        (1, "test", "fake/a.mp4"),
    ]

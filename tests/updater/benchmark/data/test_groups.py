"""Frames of one clip are one group, sources keep theirs, and whole pictures stand beside their crops."""

import hashlib
import time
from pathlib import PurePosixPath

import numpy as np
import pytest
import torch
from forked import FORKS
from PIL import Image

from detector.features.texture import CropFeatures
from ingest.records import CropPlan, Decoded, PicturePlan
from ingest.sandbox.extract import resize
from updater.benchmark.data import crops as crops_module
from updater.benchmark.data.cache import CacheError, Piece, fetch
from updater.benchmark.data.crops import ChangedMediaError, CropReader, MediaFile, stored_features
from updater.benchmark.data.folders import load_folders, load_sources
from updater.benchmark.data.forgery_sets import load_cddb
from updater.data.layouts.cddb import clip_of
from updater.data.layouts.entries import LayoutError
from updater.data.stored_rows import StoredRows
from updater.data.training_data import LabelledCrops
from updater.training.crop_rows import by_rows

PLAN = CropPlan(crop_px=32, patches=1, face_patches=0)


def test_the_clip_of_a_frame_of_a_video():
    expected = {
        "101_fake_1042_118.png": "101_fake_1042",
        "clip-7-frame-0003.png": "clip-7",
        "holiday_frame12.jpg": "holiday",
        "speech.0001.png": "speech",
        "0007.png": None,
        "IMG2034.png": None,
        "portrait.png": None,
        "clip/portrait.png": "clip",
        "a/b/0007.png": "a/b",
    }
    clips = {name: clip_of(PurePosixPath(name), of_videos=True, face_swaps=False) for name in expected}
    assert clips == expected


def test_a_face_swap_belongs_to_the_clip_that_it_was_put_into():
    names = ("033_0001.png", "033_097_0001.png", "033_097.png", "033_097/0001.png", "actor_0001.png")
    clips = [clip_of(PurePosixPath(name), of_videos=True, face_swaps=True) for name in names]
    assert clips == ["033"] * 4 + ["actor"]


def test_a_name_counts_images_where_the_task_has_no_videos():
    assert clip_of(PurePosixPath("n01440764_10026.png"), of_videos=False, face_swaps=False) is None
    assert clip_of(PurePosixPath("clip/10026.png"), of_videos=False, face_swaps=False) == "clip"


def lay(folder, names):
    for name in names:
        # Each picture its own: equal ones would be one group.
        rng = np.random.default_rng(list(name.encode()))
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (40, 48, 3), dtype=np.uint8)).save(folder / name)


@pytest.fixture(scope="module")
def reader():
    with CropReader(PLAN, processes=1) as opened:
        yield opened


def frames(folder, clip, count=3):
    return [f"{folder}/{clip}_{number:04}.png" for number in range(count)]


def test_no_clip_is_on_both_sides_of_a_split(tmp_path, reader):
    reals, fakes = [f"{n:03}" for n in range(8)], [f"{n:03}_{n + 100}" for n in range(8)]
    clips = [("0_real", clip) for clip in reals] + [("1_fake", clip) for clip in fakes]
    lay(tmp_path, [frame for kind, clip in clips for frame in frames(f"deepfake/train/{kind}", clip)])
    lay(tmp_path, [frame for kind in ("0_real", "1_fake") for frame in frames(f"deepfake/val/{kind}", "900")])
    (task,) = load_cddb(tmp_path, "deepfake", reader).tasks
    assert set(task.train.groups) | set(task.calibration.groups) == {f"deepfake/{clip}" for clip in reals}
    assert not set(task.train.groups) & set(task.calibration.groups)
    # Two of the eight clips, each with the three frames of its real and the three of its fake.
    assert task.calibration.counts() == {"deepfake/fake": 6, "deepfake/real": 6}
    assert set(task.test.groups) == {"deepfake/900"}


def test_a_folder_of_ones_own_is_one_clip_and_files_beside_it_stand_alone(tmp_path, reader):
    for part in ("train", "val"):
        for kind in ("0_real", "1_fake"):
            lay(tmp_path, frames(f"own/{part}/{kind}/one", "f", 2) + frames(f"own/{part}/{kind}", "photo", 2))
    (task,) = load_cddb(tmp_path, "own", reader, calibration_share=0).tasks
    groups = [group for group, name in zip(task.train.groups, task.train.ids, strict=True) if "/one/" in name]
    assert groups == ["own/one"] * 4
    assert len(set(task.train.groups)) == 1 + 4


def test_object_classes_have_clips_of_their_own(tmp_path, reader):
    for part in ("train", "val"):
        for hair in ("fair", "dark"):
            for kind in ("0_real", "1_fake"):
                lay(tmp_path, frames(f"wild/{part}/{hair}/{kind}", "7", 2))
    (task,) = load_cddb(tmp_path, "wild", reader, calibration_share=0).tasks
    assert set(task.train.groups) == {"wild/fair/7", "wild/dark/7"}


def test_images_of_opencils_layout_stand_alone_in_whatever_folder(tmp_path, reader):
    for name in ("cat", "dog"):
        lay(tmp_path, frames(f"id/{name}/train/images", "n01440764", 4) + frames(f"id/{name}/test", "x", 2))
    lay(tmp_path, frames("ood/noise", "7", 2))
    assert len(set(load_folders(tmp_path, reader, base=2, calibration_share=0).tasks[0].train.groups)) == 8


def test_cddbs_layout_and_folders_by_photograph_are_read_alike(tmp_path, reader):
    real, shown = "gan/train/0_real/", "phone/real/bridge/"
    places = [f"{real}a.png", f"{real}f.png", "gan/val/1_fake/b.png", f"{shown}c.png", f"{shown}d.png"]
    lay(tmp_path, [*places, "phone/notes/e.png"])
    items = LabelledCrops.join(load_sources(tmp_path, reader))
    assert items.families == ("gan/real", "gan/real", "gan/fake", "phone/real", "phone/real")
    assert items.sources == ("gan", "gan", "gan", "phone", "phone")
    assert items.groups[3:] == ("phone/bridge", "phone/bridge")
    assert len(set(items.groups)) == 4
    (tmp_path / f"{real}f.png").unlink()
    with pytest.raises(LayoutError, match="class gan/real has one picture"):
        load_sources(tmp_path, reader)


@pytest.mark.parametrize("places", [(), ("phone/real/a.png",), ("gan/1_fake/a.png",), ("gan/other/a.png",)])
def test_without_reals_or_forgeries_it_says_what_it_needs(tmp_path, places, reader):
    lay(tmp_path, places)
    with pytest.raises(LayoutError, match="SOURCE/0_real") as refused:
        load_sources(tmp_path, reader)
    assert str(tmp_path) in str(refused.value)


WHOLE = CropPlan(crop_px=32, patches=2, face_patches=0)
SHOWN = PicturePlan(width_px=24, height_px=16, interpolation="bicubic")


def test_media_is_also_shown_whole_and_kept_so(tmp_path, monkeypatch):
    folder, cache = tmp_path / "data", tmp_path / "cache"
    sides = [f"gan/{part}/{kind}" for part in ("train", "val") for kind in ("0_real", "1_fake")]
    lay(folder, [f"{side}/{index}.png" for side in sides for index in range(3)])

    def load(plan):
        with CropReader(WHOLE, cache, processes=1, picture=plan) as opened:
            return load_cddb(folder, "gan", opened).tasks[0].test

    plain, items = load(None), load(SHOWN)
    assert plain.pictures is None
    assert items.pictures.shape == (len(items), 16, 24, 3)
    source = np.asarray(Image.open(folder / items.ids[2].partition("@")[0]))
    assert np.array_equal(items.pictures[2:3][0], resize(source, SHOWN))
    assert np.array_equal(items.take([2, 1]).pictures[:], items.pictures[[2, 1]])
    monkeypatch.setattr(crops_module, "Sandbox", None)
    assert np.array_equal(load(SHOWN).pictures[:], items.pictures[:])
    assert load(None).pictures is None


# Pieces are made once, by whichever process comes first, and are found again by all.
def piece(seed=0):
    crops = np.random.default_rng(seed).integers(0, 256, (5, 32, 32, 3), np.uint8)
    return Piece(("a", "b"), ("a", "a"), crops, np.array([0, 2, 5]), ("", ""))


def _make_slowly(folder, begun, queue):
    made = []

    def make():
        begun.set()
        time.sleep(0.5)  # long enough for the others to come and find it being made
        made.append(1)
        return piece()

    found = fetch(folder, "0" * 64, make)
    queue.put((len(made), found.crops[:].tobytes()))


def test_of_several_processes_one_makes_a_piece_and_all_find_it(tmp_path):
    begun, queue = FORKS.Event(), FORKS.Queue()
    children = [FORKS.Process(target=_make_slowly, args=(tmp_path / "crops", begun, queue)) for _ in range(3)]
    for child in children:
        child.start()
    assert begun.wait(120)
    # Whoever does not wait goes on to what nobody is at.
    assert fetch(tmp_path / "crops", "0" * 64, piece, wait=False) is None
    assert fetch(tmp_path / "crops", "1" * 64, piece, wait=False) is not None
    found = [queue.get(timeout=180) for _ in children]
    for child in children:
        child.join()
    assert sum(made for made, _ in found) == 1
    assert {content for _, content in found} == {piece().crops.tobytes()}


def test_a_folder_that_cannot_be_written_is_told_of_in_one_line(tmp_path):
    (tmp_path / "crops").write_bytes(b"a file")
    with pytest.raises(CacheError, match="cannot be used"):
        fetch(tmp_path / "crops", "0" * 64, piece)


def test_features_are_computed_once_and_again_where_their_file_is_damaged(tmp_path, monkeypatch):
    crops = fetch(tmp_path / "crops", "0" * 64, piece).crops
    chosen = crops.take(np.array([4, 1]))
    device = torch.device("cpu")
    found = stored_features(chosen, device)
    plain = by_rows(CropFeatures(32), crops[:], device)
    assert np.array_equal(found[:], plain[[4, 1]])
    (file,) = (path for path in (tmp_path / "crops").iterdir() if ".features-" in path.name)
    whole = file.read_bytes()
    file.write_bytes(whole[:-5] + bytes([whole[-5] ^ 1]) + whole[-4:])
    assert np.array_equal(stored_features(chosen, device)[:], plain[[4, 1]])
    assert file.read_bytes() == whole

    monkeypatch.setattr("updater.training.crop_rows.by_rows", None)
    assert np.array_equal(stored_features(chosen, device)[:], plain[[4, 1]])


def test_a_file_that_changes_while_it_is_read_is_told_of_and_kept_out_of_the_cache(tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    path.write_bytes(b"first")
    with CropReader(cache=tmp_path / "crops") as reader:

        def decode(data, *blank):
            for _, content in data:
                yield ("of other bytes", np.zeros((1, 128, 128, 3), np.uint8)) if content else None

        monkeypatch.setattr(reader, "decode", decode)
        with pytest.raises(ChangedMediaError, match="changed while it was read"):
            reader.read("read", "a", [MediaFile(path, "a.png", "a/real")])
    assert not list((tmp_path / "crops").iterdir())


def test_a_folder_that_changed_is_read_anew_where_it_changed(tmp_path, monkeypatch):
    data = tmp_path / "data"
    data.mkdir()
    for number in range(2000):
        (data / f"{number:04}.png").write_bytes(str(number).encode())
    decoded = []

    def read():
        files = [MediaFile(path, path.name, "a/real") for path in sorted(data.iterdir())]
        with CropReader(cache=tmp_path / "crops") as reader:

            def decode(contents, *blank):
                for name, content in contents:
                    decoded.append(name)
                    crop = np.full((1, 8, 8, 3), int(content) % 251, np.uint8)
                    yield hashlib.sha256(content).hexdigest(), Decoded("image", "PNG", 8, 8, 1, crop, ())

            monkeypatch.setattr(reader, "decode", decode)
            items = reader.read("read", "a", files)
        kept = [int(path.read_bytes()) % 251 for path in sorted(data.iterdir())]
        assert items.crops[:][:, 0, 0, 0].tolist() == kept
        return decoded.copy(), decoded.clear()

    assert len(read()[0]) == 2000
    assert read()[0] == []
    (data / "!first.png").write_bytes(b"5000")
    (data / "1000.png").unlink()
    (data / "1500.png").write_bytes(b"6000")
    again, _ = read()
    assert 0 < len(again) < 1200, "three changes, each at the price of its piece and at most a few more"


def test_crops_in_a_cache_stay_on_disk(tmp_path):
    found = fetch(tmp_path / "crops", "0" * 64, piece)
    assert isinstance(found.crops, StoredRows)
    assert np.array_equal(found.crops[:], piece().crops)
    assert found.starts.tolist() == [0, 2, 5]

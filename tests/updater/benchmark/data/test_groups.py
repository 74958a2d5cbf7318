"""Frames of one clip are one group, sources keep theirs, and whole pictures stand beside their crops."""

import io
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
from PIL import Image

from ingest.records import CropPlan, PicturePlan
from ingest.sandbox.extract import resize
from updater.benchmark.data import crops as crops_module
from updater.benchmark.data.crops import CropReader
from updater.benchmark.data.folders import load_folders, load_sources
from updater.benchmark.data.forgery_sets import load_cddb
from updater.data.layouts.cddb import clip_of
from updater.data.layouts.entries import LayoutError
from updater.data.training_data import LabelledCrops

PLAN = CropPlan(crop_px=32, patches=1, face_patches=0)


@pytest.mark.parametrize(
    ("name", "clip"),
    [
        ("101_fake_1042_118.png", "101_fake_1042"),
        ("clip-7-frame-0003.png", "clip-7"),
        ("holiday_frame12.jpg", "holiday"),
        ("speech.0001.png", "speech"),
        ("0007.png", None),
        ("IMG2034.png", None),
        ("portrait.png", None),
        ("clip/portrait.png", "clip"),
        ("a/b/0007.png", "a/b"),
    ],
)
def test_the_clip_of_a_frame_of_a_video(name, clip):
    assert clip_of(PurePosixPath(name), of_videos=True, face_swaps=False) == clip


@pytest.mark.parametrize(
    ("name", "clip"),
    [
        ("033_0001.png", "033"),
        ("033_097_0001.png", "033"),
        ("033_097.png", "033"),
        ("033_097/0001.png", "033"),
        ("actor_0001.png", "actor"),
    ],
)
def test_a_face_swap_belongs_to_the_clip_that_it_was_put_into(name, clip):
    assert clip_of(PurePosixPath(name), of_videos=True, face_swaps=True) == clip


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
    stream = load_folders(tmp_path, reader, base=2, calibration_share=0)
    assert len(set(stream.tasks[0].train.groups)) == 8


def lay_sources(folder: Path, *places: str) -> Path:
    for number, place in enumerate(places):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (128, 128, 3), np.uint8)
        Image.fromarray(pixels).save(folder / place)
    return folder


def test_cddbs_layout_and_folders_by_photograph_are_read_alike(tmp_path: Path) -> None:
    folder = lay_sources(
        tmp_path,
        "gan/train/0_real/a.png",
        "gan/val/1_fake/b.png",
        "phone/real/bridge/c.png",
        "phone/real/bridge/d.png",
        "phone/notes/e.png",
    )
    with CropReader(processes=1) as reader:
        items = LabelledCrops.join(load_sources(folder, reader))
    assert items.families == ("gan/real", "gan/fake", "phone/real", "phone/real")
    assert items.sources == ("gan", "gan", "phone", "phone")
    assert items.groups[2:] == ("phone/bridge", "phone/bridge")
    assert len(set(items.groups)) == 3


@pytest.mark.parametrize("places", [(), ("phone/real/a.png",), ("gan/1_fake/a.png",), ("gan/other/a.png",)])
def test_without_reals_or_forgeries_it_says_what_it_needs(tmp_path: Path, places: tuple[str, ...]) -> None:
    with CropReader(processes=1) as reader, pytest.raises(LayoutError, match="SOURCE/0_real") as refused:
        load_sources(lay_sources(tmp_path, *places), reader)
    assert str(tmp_path) in str(refused.value)


WHOLE = CropPlan(crop_px=32, patches=2, face_patches=0)
SHOWN = PicturePlan(width_px=24, height_px=16, interpolation="bicubic")


def test_media_is_also_shown_whole_and_kept_so(tmp_path, monkeypatch):
    folder, cache = tmp_path / "data", tmp_path / "cache"
    for number, place in enumerate(f"{p}/{k}" for p in ("train", "val") for k in ("0_real", "1_fake")):
        (folder / "gan" / place).mkdir(parents=True)
        for index in range(3):
            pixels = np.random.default_rng([number, index]).integers(0, 256, (40, 48, 3), dtype=np.uint8)
            out = io.BytesIO()
            Image.fromarray(pixels).save(out, "PNG")
            (folder / "gan" / place / f"{index}.png").write_bytes(out.getvalue())

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

"""Frames of one clip are one group: by folder and by name, and never on both sides of a split."""

from pathlib import PurePosixPath

import numpy as np
import pytest
from PIL import Image

from ingest.records import CropPlan
from updater.benchmark.data.cddb import load_cddb
from updater.benchmark.data.crops import CropReader
from updater.benchmark.data.folders import load_folders
from updater.data.layouts.cddb import clip_of

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
    lay(tmp_path, [one for kind, clip in clips for one in frames(f"deepfake/train/{kind}", clip)])
    lay(tmp_path, [one for kind in ("0_real", "1_fake") for one in frames(f"deepfake/val/{kind}", "900")])
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

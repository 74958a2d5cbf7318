"""Which frames a network on videos is shown, and the video task from files to figures."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from updater.benchmark.forgerynet.choices import Choices
from updater.benchmark.forgerynet.training import PAPER, SMALL
from updater.benchmark.forgerynet.views import by_chance, covering, in_segments, middle
from updater.benchmark.report.run_folder import Run
from updater.data.layouts.forgerynet import classes_of

RECIPE = PAPER["video"]
PX, FRAMES = 48, 12


def test_the_middle_clip_is_16_frames_at_a_stride_of_4_about_the_middle() -> None:
    assert middle(101, RECIPE).tolist() == list(range(20, 81, 4))


def test_a_short_video_goes_round() -> None:
    assert middle(10, RECIPE).tolist() == [4 * number % 10 for number in range(16)]
    assert by_chance(10, RECIPE, np.random.default_rng(0)).tolist() == middle(10, RECIPE).tolist()


@given(frames=st.integers(1, 500), seed=st.integers(0, 9))
def test_clips_lie_in_the_video_and_cover_it(frames: int, seed: int) -> None:
    clips = [by_chance(frames, RECIPE, np.random.default_rng(seed)), middle(frames, RECIPE)]
    clips += (covered := covering(frames, RECIPE))
    clips.append(in_segments(frames, RECIPE, np.random.default_rng(seed)))
    assert all(len(clip) == 16 and 0 <= clip.min() <= clip.max() < frames for clip in clips)
    assert covered[0][0] == 0
    if frames > 61:
        assert covered[-1][-1] == frames - 1
        assert all(later[0] - earlier[0] <= 61 for earlier, later in itertools.pairwise(covered))


def test_segments_give_a_frame_each() -> None:
    assert in_segments(30, replace(RECIPE, frames=3)).tolist() == [5, 15, 25]


def write_video(path: Path, spread: float, rng: np.random.Generator, frames: int = FRAMES) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as out:
        stream = out.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = PX, PX, "yuv420p"
        stream.bit_rate = 4_000_000
        for _ in range(frames):
            noise = rng.normal(128, spread, (PX, PX, 3)).clip(0, 255).astype(np.uint8)
            out.mux(stream.encode(av.VideoFrame.from_ndarray(noise, format="rgb24")))
        out.mux(stream.encode(None))


@pytest.fixture
def videos(tmp_path: Path) -> Path:
    """Reals and one family, the forgeries noisy; of the training one says more frames than it has."""
    rng = np.random.default_rng(0)
    root = tmp_path / "data"
    for part, folder in (("Training", "train_video_release"), ("Validation", "val_video_release")):
        lines = []
        for directory in (3, 16):
            for number in range(4):
                path = f"{folder}/{directory}/{part[0]}{number}{directory}/video.mp4"
                write_video(root / part / "video" / path, 60 if directory == 3 else 2, rng)
                end = 99 if (part, directory, number) == ("Training", 3, 0) else FRAMES
                stretches = f"1 {path} 0 {end} {int(directory == 3)}"
                lines.append(f"{stretches} {' '.join(map(str, classes_of(directory)))}")
        (root / part / "video_list.txt").write_text("\n".join(lines) + "\n")
    return root


@pytest.fixture
def measured(videos: Path, tmp_path: Path, run_task: Callable[..., list[Run]]) -> Callable[..., Run]:
    choices = Choices(
        "video",
        "frames:test_resnet",
        synthetic=False,
        input="native",
        augmentation="weak",
        px=32,
        batch=4,
        steps=20,
        rate=0.05,
    )

    def go(**change: Any) -> Run:
        (run,) = run_task(replace(choices, **change), videos, tmp_path / "run")
        return run

    return go


@pytest.mark.slow
@pytest.mark.parametrize(("model", "crops"), [("frames:test_resnet", "multi"), ("tsn:test_resnet", "single")])
def test_videos_are_told_apart(measured: Callable[..., Run], model: str, crops: str) -> None:
    run = measured(model=model, crops=crops)
    assert run.outcome.figures["auc"].n == 8
    assert (run.outcome.figures["auc"].value or 0) > 0.9
    assert run.outcome.about["trained_on"] == 7
    assert [note for note in run.outcome.notes if "videos are shorter than their lists say" in note]


@pytest.mark.slow
def test_a_video_that_cannot_be_decoded_is_left_out_and_counted(
    videos: Path, measured: Callable[..., Run]
) -> None:
    broken = next((videos / "Validation").rglob("*.mp4"))
    broken.write_bytes(broken.read_bytes()[:40])
    run = measured(steps=1)
    assert run.outcome.about["tested_on"] == 7
    assert [note for note in run.outcome.notes if "cannot be decoded" in note and str(broken) in note]


def test_rise_and_falls_come_at_the_same_shares_of_fewer_steps() -> None:
    paper, small = PAPER["video"], SMALL["video"]
    assert [paper.rate_at(step) for step in (0, 500, 20_000, 30_000, 40_000, 45_000)] == pytest.approx(
        [1e-3, 0.02, 0.01, 0.005, 0.0025, 0.00125]
    )
    image = PAPER["image"]
    assert image.rate_at(1000) == image.rate
    assert image.rate_at(99_999) == pytest.approx(image.rate / 64)
    at = (0.0, 0.39, 0.4, 0.61, 0.95)
    assert [small.rate_at(round(share * small.steps)) for share in at] == pytest.approx(
        [paper.rate_at(round(share * paper.steps)) for share in at]
    )

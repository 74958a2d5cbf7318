"""The project's own stream as tasks, and that it is still the stream that the figures were measured on."""

import io
import json
from functools import partial
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from ingest.records import CropPlan
from updater.benchmark.data.crops import CropReader
from updater.benchmark.forgerynet.choices import with_own_names
from updater.benchmark.synthetic import forgerynet, in_part, tasks
from updater.benchmark.synthetic.camera import CAMERAS, film
from updater.benchmark.synthetic.families import FAMILIES
from updater.benchmark.synthetic.forgerynet import DIRECTORIES, directory_of
from updater.benchmark.synthetic.in_part import (
    FRAMES,
    REACH_PX,
    SIDE_PX,
    forge_in_part,
    make_clip,
    make_local,
    numbers_of,
)
from updater.benchmark.synthetic.scenes import render
from updater.benchmark.synthetic.stream import FROZEN, REAL, SPLITS, digest, make
from updater.benchmark.synthetic.tasks import load_synthetic
from updater.data.layouts.forgerynet import load_forgerynet
from updater.scan.clips import MOST, SHORTEST, Stretch, draw_stretches, forged_along, smooth_path

PLAN = CropPlan(crop_px=64, patches=1, face_patches=0)
FROZEN_LOOK = Path(__file__).with_name("synthetic_stream_frozen.json")


def load(cache, families=("periodic", "smoothed")):
    with CropReader(PLAN, cache, processes=1) as reader:
        return load_synthetic(reader, families=families, train=4, calibration=2, test=3)


def test_each_family_is_a_task_with_reals_of_its_own(tmp_path, monkeypatch):
    stream = load(tmp_path)
    assert stream.plan == PLAN
    assert [task.name for task in stream.tasks] == ["periodic", "smoothed"]
    for task in stream.tasks:
        real, fake = f"{task.name}/real", f"{task.name}/fake"
        assert task.classes == (real, fake)
        assert [part.counts() for part in (task.train, task.calibration, task.test)] == [
            {fake: n, real: n} for n in (4, 2, 3)
        ]
        assert set(task.train.sources) == {task.name}
    parts = [part for task in stream.tasks for part in (task.train, task.calibration, task.test)]
    assert sum(len(part) for part in parts) == len({item for part in parts for item in part.ids})
    for task in stream.tasks:
        assert not set(task.train.groups) & {*task.calibration.groups, *task.test.groups}

    # The second time nothing is made, and a family's items do not depend on the families beside it.
    alone = load(None, ("smoothed",)).tasks[0]
    assert alone.test.ids == stream.tasks[1].test.ids
    assert np.array_equal(alone.test.crops[:], stream.tasks[1].test.crops[:])
    monkeypatch.setattr(tasks, "make_many", None)
    assert load(tmp_path).digest == stream.digest


def look(data):
    """Size, mean colours and roughness: what stays when another processor rounds differently."""
    pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(float)
    across, down = np.abs(np.diff(pixels, axis=1)).mean(), np.abs(np.diff(pixels, axis=0)).mean()
    bend = np.abs(np.diff(pixels, 2, axis=1)).mean()
    return [*pixels.shape[:2], *pixels.mean((0, 1)).round(3), *np.round([across, down, bend], 3)]


def looks():
    return {
        f"{split}/{family}": look(make(0, split, family, 0).data)
        for split in SPLITS
        for family in (REAL, *FAMILIES)
    }


def test_the_stream_is_the_one_that_was_frozen():
    # Bytes are equal on machines with like vector instructions and packages; a pixel may round elsewhere.
    if digest(0, count=1) == FROZEN:
        return
    frozen, found = json.loads(FROZEN_LOOK.read_text()), looks()
    assert found.keys() == frozen.keys(), "families or splits changed: freeze and measure all figures anew"
    off = {name: (found[name], frozen[name]) for name in frozen if not alike(found[name], frozen[name])}
    assert not off, (
        "the stream's pictures changed by more than another processor's rounding: if that is meant, set"
        f" FROZEN and {FROZEN_LOOK.name}, and measure all figures anew. Seen and frozen: {off}"
    )


def alike(found, frozen):
    return bool(np.allclose(found, frozen, rtol=0.005, atol=0.05))


def test_what_is_kept_of_the_frozen_stream_shows_a_changed_forgery():
    # Or the comparison above would pass everything: here a little noise, and a little contrast.
    data = make(0, "after", "sharpened", 0).data
    pixels = np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(int)
    for change in (np.random.default_rng(0).integers(-2, 3, pixels.shape), (pixels - pixels.mean()) * 0.02):
        out = io.BytesIO()
        Image.fromarray((pixels + change).clip(0, 255).astype(np.uint8)).save(out, "PNG")
        assert not alike(look(out.getvalue()), look(data))
    assert alike(look(data), json.loads(FROZEN_LOOK.read_text())["after/sharpened"])


# The stream's media in ForgeryNet's layout: what its reader reads back is what was forged.
SPLIT_NAMES = {"train": "train", "stream": "val", "after": "test"}


@pytest.fixture
def made(monkeypatch):
    """Every sample that is written, with its split, all of seed 7; clips of 24 frames."""
    samples = []
    for name, maker in {name: getattr(forgerynet, name) for name in ("make_local", "make_clip")}.items():

        def spy(seed, split, *number, make=maker):
            assert seed == 7
            samples.append((split, make(seed, split, *number)))
            return samples[-1][1]

        monkeypatch.setattr(forgerynet, name, spy)
    monkeypatch.setattr(in_part, "FRAMES", 24)
    return samples


def test_every_picture_is_read_back_with_its_family_and_its_truth(tmp_path, made):
    forgerynet.write_forgerynet(tmp_path, "image", 7, {"train": 14, "stream": 6, "after": 6})
    listing = load_forgerynet(tmp_path, "image")
    assert listing.notes == ()
    read = {(entry.split, entry.path.name): entry for entry in with_own_names(listing.entries)}
    assert len(read) == len(made) == 26
    trained = [sample.family for split, sample in made if split == "train"]
    assert set(trained) == {REAL, *FAMILIES}
    assert trained.count(REAL) == 4, "three in ten"
    for split, sample in made:
        entry = read[SPLIT_NAMES[split], sample.name]
        assert entry.path.read_bytes() == sample.data
        assert (entry.family, entry.label) == (sample.family, sample.family != REAL)
        assert len(entry.masks) == (sample.family != REAL)
        for truth in entry.masks:
            assert np.array_equal(np.asarray(Image.open(truth)), sample.mask)


def test_every_clip_is_read_back_with_its_family_and_its_stretches(tmp_path, made):
    forgerynet.write_forgerynet(tmp_path, "video", 7, {"train": 16, "stream": 2, "after": 2})
    listing = load_forgerynet(tmp_path, "video")
    assert listing.notes == ()
    read = {entry.path.read_bytes(): entry for entry in with_own_names(listing.entries)}
    assert len(read) == len(made) == 20
    trained = [sample.family for split, sample in made if split == "train"]
    assert set(trained) == {REAL, *FAMILIES}
    assert trained.count(REAL) == 8, "half of them"
    for split, sample in made:
        entry = read[sample.data]
        assert (entry.family, entry.split) == (sample.family, SPLIT_NAMES[split])
        assert (entry.segments, entry.annotated) == (sample.segments, (0, sample.frames))
        assert entry.label == (sample.family != REAL)


def test_every_family_and_each_kind_of_real_has_a_directory_of_its_own():
    assert sorted(DIRECTORIES.values()) == list(range(1, 9))
    assert DIRECTORIES.keys() == FAMILIES.keys()
    assert [directory_of(REAL, camera) for camera in (None, 0, 3, 7)] == [16, 17, 18, 19]


# Media forged in part: the same each time, and forged where and when they say.
@given(st.integers(0, 2**32), st.integers(2 * SHORTEST, 300))
def test_stretches_are_one_to_three_none_shorter_than_nine_frames_and_some_is_real(seed, frames):
    segments = draw_stretches(np.random.default_rng(seed), frames)
    assert 1 <= len(segments) <= MOST
    lengths = np.diff([0, *(edge for segment in segments for edge in segment), frames])
    assert (lengths[1:-1] >= SHORTEST).all()
    assert all(length == 0 or length >= SHORTEST for length in (lengths[0], lengths[-1]))
    assert lengths[::2].sum() >= SHORTEST


def test_a_clip_without_room_for_two_stretches_is_refused():
    with pytest.raises(ValueError, match="17 frames"):
        draw_stretches(np.random.default_rng(0), 17)


@pytest.mark.parametrize("family", [REAL, "recompressed"])
def test_the_same_number_gives_the_same_clip(family):
    clip = make_clip(3, "stream", family, 1)
    assert clip == make_clip(3, "stream", family, 1)
    assert clip.data != make_clip(3, "stream", family, 2).data
    assert clip.data != make_clip(4, "stream", family, 1).data
    assert clip.group != make_clip(3, "after", family, 1).group
    with av.open(io.BytesIO(clip.data), format="mp4") as container:
        frames = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    assert frames.shape == (FRAMES, SIDE_PX, SIDE_PX, 3)
    assert bool(clip.segments) == (family != REAL)


def test_what_is_unknown_is_refused():
    with pytest.raises(KeyError):
        make_clip(0, "train", "no-such-family", 0)
    with pytest.raises(KeyError):
        make_clip(0, "no-such-split", REAL, 0)


def test_the_frozen_stream_of_stills_is_untouched():
    assert digest(seed=0, count=1) == FROZEN


def test_noise_is_anew_in_each_frame_and_all_else_of_the_camera_stays():
    # A window that rests shows what the camera changes from frame to frame.
    rng, side = np.random.default_rng(5), SIDE_PX + 2 * REACH_PX
    scene, state = render(rng, side, side), int(rng.integers(2**63))
    window = scene[:, REACH_PX : REACH_PX + SIDE_PX, REACH_PX : REACH_PX + SIDE_PX]
    frames = film(rng, CAMERAS[1], state, [window] * 24).astype(np.float32)
    assert (frames[1:] != frames[:-1]).mean() > 0.1
    assert np.ptp(frames.mean((1, 2)), axis=0).max() < 0.5


@pytest.mark.parametrize("family", FAMILIES)
def test_a_forgery_is_in_its_frames_alone_and_in_one_region_that_moves_along(family):
    rng = np.random.default_rng(2)
    frames = rng.integers(0, 256, (30, 32, 32, 1), np.uint8).repeat(4, 1).repeat(4, 2).repeat(3, 3)
    moves = np.stack([np.arange(30) - 15, 15 - np.arange(30)], 1)
    made = forged_along(
        np.random.default_rng(1),
        frames,
        [Stretch(4, 13), Stretch(20, 29)],
        moves,
        partial(forge_in_part, FAMILIES[family]),
    )
    changed = (made != frames).any(3)
    assert sorted(np.flatnonzero(changed.any((1, 2)))) == [*range(4, 13), *range(20, 29)]
    places = np.array([np.argwhere(changed[number]).min(0) for number in range(20, 29)])
    if family not in ("blended", "inpainted"):
        # Less than half of a clip's picture, and where it begins goes with the moves, but for what is not
        # changed by chance and for the picture's edge.
        assert changed[20:29].mean() < 0.5
    inner = (places > 0).all(1)
    drift = places[inner] - moves[20:29][inner]
    assert inner.sum() == 0 or np.abs(drift - np.median(drift, 0)).max() <= 6


def test_paths_are_smooth_and_stay_within_reach():
    for seed in range(50):
        path = smooth_path(np.random.default_rng(seed), FRAMES, REACH_PX)
        assert np.abs(path).max() <= REACH_PX
        assert np.abs(np.diff(path, axis=0)).max() <= 3


def test_families_share_what_is_not_real():
    wanted = numbers_of(1000, 300)
    families = [family for family, _ in wanted]
    assert families.count(REAL) == 300
    assert {families.count(family) for family in FAMILIES} == {87, 88}
    assert len(set(wanted)) == 1000


@pytest.mark.parametrize("family", FAMILIES)
def test_a_picture_is_forged_where_its_mask_says_and_nowhere_else(family):
    sample = make_local(0, "train", family, 1)
    assert sample.mask.shape == (256, 256)
    share = (sample.mask > 127).mean()
    assert 0.03 <= share <= 0.36 or FAMILIES[family].local
    assert 0 < share < 0.7
    assert Image.open(io.BytesIO(sample.data)).size == (256, 256)

"""What is kept of a real video at import is what a release would scan; what fails costs no more than that."""

from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np
import pytest
from numpy.typing import NDArray
from verdicts import look

from ingest.records import CropPlan, Decoded, Place, PlacesPlan, Plan, Region
from ingest.sandbox.crops import grid
from ingest.sandbox.extract import extract
from memory.crops.scans import (
    FEWEST_FRAMES,
    Measure,
    RealVideo,
    decode_frames,
    encode_frames,
    is_scanned,
    measure_features,
    scans,
)
from updater.distortions.clip_writing import to_h264

PLAN = CropPlan(crop_px=64)
SIZE = (200, 144)


class InThisProcess:
    """Decodes as a sandbox does, where nobody has to be kept out."""

    def submit(self, media: bytes, plan: Plan) -> "Future[Decoded]":
        return look(lambda: media, plan)


def clip(frames: int = 24) -> bytes:
    scene = np.random.default_rng(0).integers(0, 256, (18, 28, 3), np.uint8).repeat(8, 0).repeat(8, 1)
    return to_h264(np.stack([scene[:, k % 20 : k % 20 + 200] for k in range(frames)]), 30, "mp4")


def first_look(*, length: int = 24, face: bool = False, kind: str = "video") -> Decoded:
    each = len(grid(*SIZE, PLAN.crop_px, PLAN.patches))
    regions = [
        Region("frame", (0, 0, *SIZE), 3 * n, n / 8, tuple(range(n * each, (n + 1) * each))) for n in range(8)
    ]
    if face:
        regions.append(Region("face", (130, 70, 60, 60), 0, 0.0, (0,)))
    crops = np.zeros((8 * each, 64, 64, 3), np.uint8)
    return Decoded(kind, "mp4", *SIZE, 8, crops, tuple(regions), tuple(range(0, 24, 3)), length)


def restless_at(place: int) -> Measure:
    """Measures so that one place of the grid changes most from frame to frame."""
    each = len(grid(*SIZE, PLAN.crop_px, PLAN.patches))

    def measure(items: Sequence[NDArray[np.uint8]]) -> NDArray[np.float32]:
        rows = np.ones((len(items), 5), np.float32)
        rows[place::each] += np.arange(len(rows[place::each]), dtype=np.float32)[:, None]
        return rows

    return measure


def kept(data: bytes, decoded: Decoded, place: int = 0) -> dict[str, np.ndarray]:
    (rows,) = measure_features([decoded], restless_at(place), [True])
    found = scans({"a": RealVideo("real/a.mp4", data, decoded, rows)}, InThisProcess(), PLAN)
    return {name: decode_frames(value) for name, value in found.items()}


@pytest.mark.parametrize("place", [0, 4])
def test_a_video_without_a_face_is_kept_where_it_changes_most(place):
    left, top = grid(*SIZE, PLAN.crop_px, PLAN.patches)[place]
    frames = kept(clip(), first_look(), place)["a"]
    looked = extract(clip(), scans_plan(left, top, 24), 10**6).crops
    np.testing.assert_array_equal(frames, looked)


def scans_plan(left: int, top: int, frames: int) -> PlacesPlan:
    return PlacesPlan(crop_px=64, places=tuple(Place(number, left, top) for number in range(frames)))


def test_a_video_with_a_face_is_kept_along_the_face():
    frames = kept(clip(), first_look(face=True))["a"]
    np.testing.assert_array_equal(frames, extract(clip(), scans_plan(128, 64, 24), 10**6).crops)


def test_at_most_96_frames_of_a_long_video_are_kept():
    assert len(kept(clip(200), first_look(length=200))["a"]) == 96


def test_what_fails_or_has_too_few_frames_after_all_is_left_out():
    assert kept(b"no video", first_look()) == {}
    assert kept(clip(FEWEST_FRAMES - 1), first_look()) == {}
    assert len(kept(clip(FEWEST_FRAMES), first_look())["a"]) == FEWEST_FRAMES


def test_only_real_videos_are_scanned():
    assert is_scanned("real", first_look())
    assert not is_scanned("gan", first_look())
    assert not is_scanned("real", first_look(kind="image"))
    assert not is_scanned("real", first_look(length=FEWEST_FRAMES - 1))


def test_an_items_features_are_the_mean_of_its_rows_whether_it_is_scanned_or_not():
    def measure(items: Sequence[NDArray[np.uint8]]) -> NDArray[np.float32]:
        return np.stack([item.mean((0, 1, 2), dtype=np.float32)[:1] for item in items])

    rng = np.random.default_rng(0)
    one = first_look()
    one.crops[:] = rng.integers(0, 256, one.crops.shape)
    apart, together, face = measure_features([one, one, first_look(face=True)], measure, [True, False, True])
    assert (apart.shape, together.shape, face.shape) == ((len(one.crops), 1), (1, 1), (1, 1))
    assert apart.mean() == pytest.approx(together.mean(), rel=1e-4)


@pytest.mark.parametrize("shape", [(1, 16, 16, 3), (24, 64, 64, 3), (3, 33, 33, 3)])
def test_frames_come_back_to_the_bit_and_the_same_ones_give_the_same_bytes(shape):
    frames = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    value = encode_frames(frames)
    np.testing.assert_array_equal(decode_frames(value), frames)
    assert encode_frames(frames) == value


def test_frames_that_follow_on_one_another_take_a_fraction():
    scene = np.random.default_rng(0).integers(0, 256, (80, 200, 3), np.uint8)
    frames = np.stack([scene[:64, k : k + 64] for k in range(32)])
    assert len(encode_frames(frames)) < frames.nbytes / 8


@pytest.mark.parametrize(
    "value", [b"", b"no frames at all", encode_frames(np.zeros((2, 16, 16, 3), np.uint8))[:60]]
)
def test_what_holds_no_frames_is_refused(value):
    with pytest.raises(ValueError, match="holds no frames"):
        decode_frames(value)

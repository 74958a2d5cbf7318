"""The features of a file's frames are those of its crops, wherever in the picture these lie."""

from pathlib import Path

import numpy as np
import pytest

from updater.benchmark.temporal.clip_features import CROP_PX, frame_features
from updater.distortions.clip import Clip, ClipError, to_rgb
from updater.distortions.clip_writing import to_h264
from updater.scan.clips import SeenFrames

MAX_PIXELS = 10**8


@pytest.fixture(scope="module")
def features() -> SeenFrames:
    return SeenFrames(CROP_PX)


@pytest.mark.slow
def test_a_clip_of_a_crops_size_has_the_features_of_its_frames(tmp_path: Path, features: SeenFrames):
    rng = np.random.default_rng(0)
    path = tmp_path / "clip.mp4"
    path.write_bytes(to_h264(rng.integers(0, 256, (12, CROP_PX, CROP_PX, 3), np.uint8), 20, "mp4"))
    wanted = features(np.stack([to_rgb(frame) for frame in Clip(path, MAX_PIXELS).frames()]))
    assert np.allclose(frame_features(path, features, 0, None, MAX_PIXELS), wanted, atol=1e-3)
    assert np.allclose(frame_features(path, features, 3, 9, MAX_PIXELS), wanted[3:9], atol=1e-3)
    with pytest.raises(ClipError, match="no frame from 12"):
        frame_features(path, features, 12, None, MAX_PIXELS)


def test_without_a_face_the_place_that_changes_most_is_looked_at(tmp_path: Path, features: SeenFrames):
    rng = np.random.default_rng(1)
    still = rng.integers(0, 256, (1, 2 * CROP_PX, 3 * CROP_PX, 3), np.uint8).repeat(24, 0)
    still[:, CROP_PX:, 2 * CROP_PX :] = 0
    for number in range(24):
        # From frame to frame smoother or rougher: nothing else in the picture changes.
        rough = rng.normal(128, 2 + 3 * number, (CROP_PX, CROP_PX, 1))
        still[number, CROP_PX:, 2 * CROP_PX :] = np.clip(rough, 0, 255).astype(np.uint8)
    path = tmp_path / "clip.mkv"
    path.write_bytes(to_h264(still, 10))
    corner = (slice(None), slice(CROP_PX, None), slice(2 * CROP_PX, None))
    shown = np.stack([to_rgb(frame) for frame in Clip(path, MAX_PIXELS).frames()])[corner]
    found = frame_features(path, features, 0, None, MAX_PIXELS)
    assert np.allclose(found, features(shown), atol=1e-3)

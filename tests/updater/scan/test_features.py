"""Features of frames in an update are those of the release's graph, however many come at once."""

import numpy as np
import pytest
import torch

from detector.features.cell_traces import FrameFeatures
from updater.scan.features import SeenFrames


@pytest.mark.slow
@pytest.mark.parametrize("frames", [1, 4, 9])
def test_they_are_those_that_torch_computes(frames: int) -> None:
    crops = np.random.default_rng(frames).integers(0, 256, (frames, 64, 64, 3), np.uint8)
    with torch.inference_mode():
        wanted = FrameFeatures(64)(torch.from_numpy(crops).permute(0, 3, 1, 2).float()).numpy()
    found = SeenFrames(64)(crops)
    assert found.shape == wanted.shape
    assert (np.abs(found - wanted) / (1 + np.abs(wanted))).max() < 1e-3


def test_a_side_that_has_no_features_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 8"):
        SeenFrames(60)

"""Rows of crops: the same whatever computes them."""

import numpy as np
import torch

from detector.features.forensics import ForensicFeatures
from updater.training.crop_rows import by_rows
from updater.training.pools import forensics_on

CPU = torch.device("cpu")


def test_the_features_of_the_graph_are_those_of_torch_within_rounding() -> None:
    rng = np.random.default_rng(0)
    crops = rng.integers(0, 256, (5, 128, 128, 3)).astype(np.uint8)
    crops[1] = 128  # all of one colour
    forensics = ForensicFeatures(128)
    fast = forensics_on(CPU, forensics, 128)
    assert fast is not forensics
    found, expected = (
        torch.as_tensor(by_rows(one, crops, CPU, lambda done, total: None)[:]) for one in (fast, forensics)
    )
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_crops_of_another_side_are_left_to_torch() -> None:
    forensics = ForensicFeatures(64)
    assert forensics_on(CPU, forensics, 64) is forensics

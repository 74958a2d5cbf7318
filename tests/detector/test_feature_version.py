from pathlib import Path

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray

from detector.features.forensics import ForensicFeatures
from detector.model.feature_graph import STORED_PX, stored
from detector.release.architecture import FEATURE_VERSION
from detector.release.tensors import tolerance

GOLDEN = Path(__file__).with_name(f"features-{FEATURE_VERSION}-{STORED_PX}.npy")
"""What the first graph of this feature version made of these crops, float32 (8, F): rows that a memory keeps
from then on are compared with what is computed today."""


def golden_crops() -> NDArray[np.uint8]:
    """Eight crops of whole-number arithmetic, the same on every machine and with every version of numpy."""
    y, x = np.mgrid[:STORED_PX, :STORED_PX]
    grain = np.stack([_noise(seed) for seed in range(3)], 2)
    scene = 40 + (np.abs(x % 90 - 45) + np.abs(y % 70 - 35) + np.abs((x + y) % 54 - 27))[:, :, None]
    grey = scene + grain[:, :, :1] // 16 - 8
    edges = 60 + 130 * ((x // 24 + y // 24) % 2)[:, :, None]
    blocky = grey.reshape(16, 8, 16, 8).mean((1, 3)).astype(int).repeat(8, 0).repeat(8, 1)[:, :, None]
    mosaic = scene + (grain // 12 - 10) * ((x + y) % 2 == 1)[:, :, None]
    doubled = (scene + grain // 8 - 16)[::2, ::2].repeat(2, 0).repeat(2, 1)
    dark, bright = grain // 64, 200 + grain // 3
    made = [grey, scene + grain // 16 - 8, edges + grain // 32, blocky, mosaic, doubled, dark, bright]
    return np.stack([np.broadcast_to(np.clip(one, 0, 255), grain.shape) for one in made]).astype(np.uint8)


def _noise(seed: int) -> NDArray[np.int64]:
    """Return whole numbers of 0..255, int64 (S, S): three rounds of multiplying and mixing 32 bits."""
    mixed = np.arange(STORED_PX**2, dtype=np.uint64) + np.uint64(seed * STORED_PX**2)
    for factor in (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D):
        mixed = mixed * np.uint64(factor) & np.uint64(0xFFFFFFFF)
        mixed ^= mixed >> np.uint64(15)
    return (mixed >> np.uint64(24)).astype(np.int64).reshape(STORED_PX, STORED_PX)


def farthest(found: NDArray[np.float32]) -> float:
    golden = np.load(GOLDEN)
    return float(np.max(np.abs(found - golden) / (1 + np.abs(golden))))


def test_torch_makes_the_features_that_this_version_has_always_had() -> None:
    crops = torch.from_numpy(golden_crops()).permute(0, 3, 1, 2).float()
    with torch.inference_mode():
        assert farthest(ForensicFeatures(STORED_PX)(crops).numpy()) <= tolerance("features")


def test_the_graph_that_lies_in_the_package_makes_them_too() -> None:
    session = onnxruntime.InferenceSession(stored(), providers=["CPUExecutionProvider"])
    (found,) = session.run(["features"], {"crops": golden_crops()})
    assert farthest(found) <= tolerance("features")

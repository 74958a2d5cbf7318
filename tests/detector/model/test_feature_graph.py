import subprocess
import sys

import numpy as np
import onnxruntime
import pytest
import torch
from numpy.typing import NDArray

from detector.features.forensics import ForensicFeatures
from detector.model.feature_graph import STORED_PX, feature_graph
from detector.release.tensors import tolerance

pytestmark = pytest.mark.slow


def crops(side: int, count: int = 9) -> NDArray[np.uint8]:
    """Smooth, noisy, flat and saturated crops."""
    rng = np.random.default_rng(side)
    smooth = rng.normal(0, 1, (count, side, side, 3)).cumsum(1).cumsum(2)
    made = 128 + 100 * smooth / np.abs(smooth).max() + rng.normal(0, 3, smooth.shape)
    made[-2:] = np.array([0, 255])[:, None, None, None]
    return np.clip(made, 0, 255).astype(np.uint8)


@pytest.mark.parametrize("side", [STORED_PX, 64])
def test_the_graph_says_what_torch_says_of_any_number_of_crops(side: int) -> None:
    session = onnxruntime.InferenceSession(feature_graph(side), providers=["CPUExecutionProvider"])
    for count in (1, 9):
        asked = crops(side, max(3, count))[-count:]
        with torch.inference_mode():
            expected = ForensicFeatures(side)(torch.from_numpy(asked).permute(0, 3, 1, 2).float()).numpy()
        (found,) = session.run(["features"], {"crops": asked})
        assert np.max(np.abs(found - expected) / (1 + np.abs(expected))) <= tolerance("features")


def test_a_side_that_has_no_features_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple of 8"):
        feature_graph(60)


@pytest.mark.parametrize(
    ("side", "ends"), [(STORED_PX, "made"), (64, "64 px need torch, which is not installed")]
)
def test_without_torch_there_are_features_of_crops_of_the_usual_side_alone(side: int, ends: str) -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "from memory.features import ItemFeatures\n"
        f"try: ItemFeatures({side}); print('made')\n"
        "except ValueError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ends in done.stdout

"""What the head over time sees of frames, as a release's graph computes it, on ONNX Runtime."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from detector.features.cell_traces import FrameFeatures
from detector.model.export import write_onnx
from detector.release.scan_contract import FEATURES
from detector.release.tensors import CROPS, ROWS, TensorSpec
from detector.serving.session import open_graph
from updater.filters import Picture

# More crops at once do not fit the processor's cache.
_CROPS_AT_ONCE = 4


class SeenFrames:
    """Features of frames, of which one crop is seen. Threads may share one."""

    def __init__(self, crop_px: int) -> None:
        """Make the graph. Raises ValueError for a side that has no features."""
        crops = TensorSpec(name=CROPS, dtype="uint8", shape=(ROWS, crop_px, crop_px, 3))
        with TemporaryDirectory() as folder:
            path = Path(folder) / "features.onnx"
            write_onnx(_OfCrops(crop_px), [crops], path)
            # It computes in the thread that calls, as `memory.features.ItemFeatures` does.
            self._session = open_graph(path, {CROPS}, {FEATURES}, threads=1, gpu=None)

    def __call__(self, frames: Picture) -> NDArray[np.float32]:
        """Return float32 [T, F] of crops, uint8 RGB [T, S, S, 3] with T >= 1."""
        parts = np.split(frames, range(_CROPS_AT_ONCE, len(frames), _CROPS_AT_ONCE))
        return np.concatenate([self._session.run([FEATURES], {CROPS: part})[0] for part in parts])


class _OfCrops(nn.Module):
    def __init__(self, crop_px: int) -> None:
        super().__init__()
        self.features = FrameFeatures(crop_px)

    def forward(self, crops: Tensor) -> dict[str, Tensor]:
        return {FEATURES: self.features(crops.permute(0, 3, 1, 2).float())}

"""The exported graph in this process, on ONNX Runtime."""

from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from detector.scored import OUTPUTS, Scored, TensorsError


class Session:
    """Scores crops with one detector.onnx; pure, so the same input gives the same output."""

    def __init__(self, model: Path, threads: int) -> None:
        """Load model, an artifact's folder or the ONNX file itself, to run on `threads` CPU threads."""
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # A waiting thread of the pool must not take the cores of decoding, which runs beside it.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        path = model / "detector.onnx" if model.is_dir() else model
        self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        self.crop_px: int = self._session.get_inputs()[0].shape[1]

    def score(self, crops: NDArray[np.uint8], pooling: NDArray[np.float32]) -> Scored:
        """Score pools of crops.

        crops is uint8 (N, crop_px, crop_px, 3), N >= 1; pooling float32 (M, N), each row summing to
        1. Raises TensorsError when the crops have another size than the graph's.
        """
        if crops.shape[1:] != (self.crop_px, self.crop_px, 3):
            raise TensorsError(f"crops are {crops.shape[1:]}, this model takes {self.crop_px} px")
        outputs = self._session.run(list(OUTPUTS), {"crops": crops, "pooling": pooling})
        return Scored(**dict(zip(OUTPUTS, outputs, strict=True)))

"""The exported graph in this process, on ONNX Runtime."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from detector.scored import OUTPUTS, Scored, TensorsError

_RUN_CROPS = 8
"""Most crops of one run of the graph: what larger ones write between two layers fits no cache. 32 crops
at once were seen to take a quarter to a third more processor time a crop, at 128 px and at 224 px."""


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
        runs = list(_runs(pooling, _RUN_CROPS))
        outputs = [
            self._session.run(
                list(OUTPUTS),
                {"crops": crops[span], "pooling": np.ascontiguousarray(pooling[rows, span])},
            )
            for rows, span in runs
        ]
        order = np.argsort(np.concatenate([rows for rows, _ in runs]))
        columns = zip(OUTPUTS, zip(*outputs, strict=True), strict=True)
        return Scored(**{name: np.concatenate(parts)[order] for name, parts in columns})


def _runs(pooling: NDArray[np.float32], most: int) -> Iterator[tuple[list[int], slice]]:
    """Share the rows of pooling (M, N) out: rows, with the span of crops that they are means of.

    No row of another run needs a crop of the span. A span has at most `most` crops, or more where rows
    that overlap need them.
    """
    used = pooling != 0
    first, past = used.argmax(1), pooling.shape[1] - used[:, ::-1].argmax(1)
    rows: list[int] = []
    start = stop = 0
    for row in np.argsort(first, kind="stable"):
        if rows and first[row] >= stop and past[row] > start + most:
            yield rows, slice(start, stop)
            rows = []
        start = start if rows else first[row]
        stop = max(stop, past[row])
        rows.append(row)
    yield rows, slice(start, stop)

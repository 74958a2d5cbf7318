"""What a release's scanner takes and gives, and from which score on a stretch is told: in the manifest."""

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from detector.release.contract import CROPS, ROWS, TensorSpec
from detector.release.tensors import ModelOutput

FRAME_SCORE = "frame_score"
MOST_FRAMES = 96
"""most frames that a video is scanned in"""

MAX_DIFFERENCE = 2 / 255
"""Two time lines are equal where no frame differs by more, as two maps are of which no cell does."""


class ScanContract(BaseModel):
    """The third graph of a release: one place of a clip, frame by frame, to how likely each is forged.

    crops: uint8 (rows, S, S, 3), RGB, of one clip in the order of its frames; frame_score: float32 (rows) in
    0..1. A clip comes in one request, for each frame is seen beside the others. The file itself takes a clip
    in parts (`detector.model.scanner.ScannerGraph`).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    crop_px: int = Field(ge=32, multiple_of=8)
    frames: int = Field(
        MOST_FRAMES, gt=0, le=MOST_FRAMES, description="most frames of a clip, spread evenly over it"
    )
    threshold: float = Field(gt=0, le=1, description="a stretch is told from this score on")
    reals_told: float = Field(
        ge=0, le=1, description="share of held-back real clips with a stretch that is told"
    )
    reals: int = Field(gt=0, description="how many those were")
    export_difference: float = Field(ge=0, description="largest difference of a score, onnx against torch")

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The arrays that it takes."""
        return scan_inputs(self.crop_px)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The arrays that it gives."""
        return (TensorSpec(name=FRAME_SCORE, dtype="float32", shape=(ROWS,)),)


def scan_inputs(crop_px: int) -> tuple[TensorSpec, ...]:
    """Return the arrays that a scanner of crops of this side takes."""
    return (TensorSpec(name=CROPS, dtype="uint8", shape=(ROWS, crop_px, crop_px, 3)),)


def scan_difference(a: ModelOutput, b: ModelOutput) -> float:
    """Return the largest difference of a frame's score; infinite where shapes differ or one is no number."""
    one, other = a.get(FRAME_SCORE), b[FRAME_SCORE]
    if one is None or one.shape != other.shape or not (np.isfinite(one).all() and np.isfinite(other).all()):
        return float("inf")
    return float(np.abs(one - other).max(initial=0.0))

"""The scanner's declaration: how likely each frame of a clip is forged, seen beside the others."""

import numpy as np
from pydantic import Field

from detector.release.tensors import CROPS, ROWS, CropGraph, ModelOutput, Request, Run, TensorSpec

FRAME_SCORE = "frame_score"
BEFORE, FEATURES = "before", "features"
MOST_FRAMES = 96
"""most frames that a video is scanned in"""
_PART = 4
"""crops at a time: more do not fit the processor's cache (96 at once took twice as long)"""


class ScanContract(CropGraph):
    """One place of a clip, frame by frame, to how likely each is forged.

    crops: uint8 (rows, S, S, 3), RGB, of one clip in the order of its frames; frame_score: float32 (rows) in
    0..1; a stretch of frames is told from the threshold on. A clip comes in one request, for each frame is
    seen beside the others. The file itself takes a clip in parts (`detector.model.scanner.ScannerGraph`):
    before: float32 (before, F), the features of the frames before these; it gives their features, too.
    """

    crop_px: int = Field(ge=32, multiple_of=8)
    frames: int = Field(
        MOST_FRAMES, gt=0, le=MOST_FRAMES, description="most frames of a clip, spread evenly over it"
    )
    features: int = Field(
        726, gt=0, description="of a frame: 342 forensic ones and six traces of each of 64 cells"
    )
    reals_told: float = Field(
        ge=0, le=1, description="share of held-back real clips with a stretch that is told"
    )

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The frames' scores."""
        return (TensorSpec(name=FRAME_SCORE, dtype="float32", shape=(ROWS,)),)

    @property
    def file_inputs(self) -> tuple[TensorSpec, ...]:
        """The crops of a part, and the features of the parts before it."""
        return (*self.inputs, TensorSpec(name=BEFORE, dtype="float32", shape=(BEFORE, self.features)))

    @property
    def file_outputs(self) -> tuple[TensorSpec, ...]:
        """The features of the part, and the scores of all frames so far."""
        return (
            TensorSpec(name=FEATURES, dtype="float32", shape=(ROWS, self.features)),
            TensorSpec(name=FRAME_SCORE, dtype="float32", shape=("frames",)),
        )

    def answered(self, run: Run, request: Request) -> ModelOutput:
        """Score the frames of one clip, its features a few frames at a time."""
        crops = request[CROPS]
        none = np.zeros((0, self.features), np.float32)
        *parts, last = np.split(crops, range(_PART, len(crops), _PART))
        # The head looks at all pairs of frames: so it is shown them all once, and else those of a part alone.
        features = [run([FEATURES], {CROPS: part, BEFORE: none})[0] for part in parts]
        (scores,) = run([FRAME_SCORE], {CROPS: last, BEFORE: np.concatenate([none, *features])})
        return {FRAME_SCORE: scores}

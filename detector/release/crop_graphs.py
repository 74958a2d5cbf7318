"""The declarations of the graphs beside the detector, from crops to probabilities.

The localizer's says where a picture is forged, as cells of each crop. The scanner's says how likely each
frame of a clip is forged, seen beside the others.
"""

from typing import Literal

import numpy as np
from pydantic import Field

from detector.release.tensors import (
    CROPS,
    MOST_CROPS,
    ROWS,
    GraphContract,
    ModelOutput,
    Request,
    Run,
    TensorsError,
    TensorSpec,
)

OF_PICTURE = "of_picture"
CELLS = "cells"
CELL_PX: Literal[8] = 8
"""side of a cell of a map, pixels of the picture; as large as a block of JPEG"""

FRAME_SCORE = "frame_score"
BEFORE, FEATURES = "before", "features"
MOST_FRAMES = 96
"""most frames that a video is scanned in"""
_PART = 4
"""crops at a time: more do not fit the processor's cache (96 at once took twice as long)"""


class CropGraph(GraphContract):
    """A graph beside the detector: from crops to probabilities, which a threshold reads.

    Two answers are equal where no probability differs by more than 2/255: what a map as a picture of 8 bits
    hardly shows.
    """

    crop_px: int
    threshold: float = Field(gt=0, le=1)
    reals: int = Field(gt=0, description="on how many held-back reals its false alarms were measured")
    export_difference: float = Field(0.0, ge=0, description="largest of a probability, onnx against torch")

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The crops, uint8 RGB, with what else a request has."""
        return (TensorSpec(name=CROPS, dtype="uint8", shape=(ROWS, self.crop_px, self.crop_px, 3)),)

    def tolerance(self, _name: str) -> float:
        """Return the same for each output, |a - b| / (1 + |b|) of probabilities."""
        return 1 / 255


MAX_REALS_MARKED = 0.05
"""Share of genuine pictures of which maps may mark more than 2 %: a release with more makes none."""


def map_problem(marked: float) -> str | None:
    """Why a release makes no maps, by the share of genuine pictures that they mark; None: it makes them."""
    share, most = (f"{100 * part:.0f} %" for part in (marked, MAX_REALS_MARKED))
    why = f"this release's maps mark {share} of genuine pictures, and the bound is {most}"
    return f"The map is left out: {why}" if marked > MAX_REALS_MARKED else None


class MapContract(CropGraph):
    """Crops, and which of them are of one picture, to a map of each crop.

    crops: uint8 (rows, S, S, 3), RGB; of_picture: int64 (rows), equal where two crops are of one picture;
    cells: float32 (rows, S / 8, S / 8) in 0..1, how likely each cell is forged; one counts as forged from
    the threshold on. The crops of a picture must come in one request, for each is seen beside the others.
    """

    crop_px: int = Field(gt=0, multiple_of=CELL_PX)
    cell_px: Literal[8] = CELL_PX
    reals_marked: float = Field(ge=0, le=1, description="share of unseen reals with over 2 % of cells marked")

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return (*super().inputs, TensorSpec(name=OF_PICTURE, dtype="int64", shape=(ROWS,)))

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        side = self.crop_px // CELL_PX
        return (TensorSpec(name=CELLS, dtype="float32", shape=(ROWS, side, side)),)

    def run_graph(self, run: Run, request: Request) -> ModelOutput:
        """Map picture by picture: so no other picture of the request changes a map.

        Raises TensorsError where one has more than MOST_CROPS.
        """
        crops, of_picture = request[CROPS], request[OF_PICTURE]
        longest = int(np.unique(of_picture, return_counts=True)[1].max())
        if longest > MOST_CROPS:
            raise TensorsError(f"{longest} crops of one picture: at most {MOST_CROPS} are mapped at once")
        side = self.crop_px // CELL_PX
        cells = np.empty((len(crops), side, side), np.float32)
        for picture in np.unique(of_picture):
            rows = np.nonzero(of_picture == picture)[0]
            feed = {CROPS: np.ascontiguousarray(crops[rows]), OF_PICTURE: of_picture[rows]}
            (cells[rows],) = run([CELLS], feed)
        return {CELLS: cells}


class ScanContract(CropGraph):
    """One place of a clip, frame by frame, to how likely each is forged.

    crops: uint8 (rows, S, S, 3), RGB, of one clip in the order of its frames; frame_score: float32 (rows) in
    0..1; a stretch of frames is told from the threshold on. A clip comes in one request, for each frame is
    seen beside the others. The file itself takes a clip in parts (`detector.model.scanner.ScannerGraph`):
    before: float32 (before, F), the features of the frames before these; it gives their features, too.
    """

    crop_px: int = Field(ge=32, multiple_of=8)
    frames: int = Field(MOST_FRAMES, gt=0, le=MOST_FRAMES, description="most frames of a clip, spread evenly")
    features: int = Field(726, gt=0, description="of a frame: 342 forensic, six traces of each of 64 cells")
    reals_told: float = Field(ge=0, le=1, description="share of held-back real clips with a stretch told")

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
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

    def run_graph(self, run: Run, request: Request) -> ModelOutput:
        """Score the frames of one clip, its features a few frames at a time.

        Raises TensorsError where they are more than MOST_FRAMES.
        """
        crops = request[CROPS]
        if len(crops) > MOST_FRAMES:
            raise TensorsError(f"{len(crops)} frames of one clip: at most {MOST_FRAMES} are scanned")
        none = np.zeros((0, self.features), np.float32)
        *parts, last = np.split(crops, range(_PART, len(crops), _PART))
        # The head looks at all pairs of frames: so it is shown them all once, and else those of a part alone.
        features = [run([FEATURES], {CROPS: part, BEFORE: none})[0] for part in parts]
        (scores,) = run([FRAME_SCORE], {CROPS: last, BEFORE: np.concatenate([none, *features])})
        return {FRAME_SCORE: scores}

"""The localizer's declaration: where a picture is forged, as cells of each of its crops."""

from typing import Literal

import numpy as np
from pydantic import Field

from detector.release.tensors import CROPS, ROWS, CropGraph, ModelOutput, Request, Run, TensorSpec

OF_PICTURE = "of_picture"
CELLS = "cells"
CELL_PX: Literal[8] = 8
"""side of a cell of a map, pixels of the picture; as large as a block of JPEG"""


class MapContract(CropGraph):
    """Crops, and which of them are of one picture, to a map of each crop.

    crops: uint8 (rows, S, S, 3), RGB; of_picture: int64 (rows), equal where two crops are of one picture;
    cells: float32 (rows, S / 8, S / 8) in 0..1, how likely each cell is forged; one counts as forged from
    the threshold on. The crops of a picture must come in one request, for each is seen beside the others.
    """

    crop_px: int = Field(gt=0, multiple_of=CELL_PX)
    cell_px: Literal[8] = CELL_PX
    reals_marked: float = Field(
        ge=0,
        le=1,
        description="share of reals with more than 2 % of their cells at the threshold; nothing was fitted on"
        " them",
    )

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The crops and their pictures."""
        return (*super().inputs, TensorSpec(name=OF_PICTURE, dtype="int64", shape=(ROWS,)))

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The cells."""
        side = self.crop_px // CELL_PX
        return (TensorSpec(name=CELLS, dtype="float32", shape=(ROWS, side, side)),)

    def answered(self, run: Run, request: Request) -> ModelOutput:
        """Map picture by picture: so no other picture of the request changes a map."""
        crops, of_picture = request[CROPS], request[OF_PICTURE]
        side = self.crop_px // CELL_PX
        cells = np.empty((len(crops), side, side), np.float32)
        for picture in np.unique(of_picture):
            rows = np.nonzero(of_picture == picture)[0]
            feed = {CROPS: np.ascontiguousarray(crops[rows]), OF_PICTURE: of_picture[rows]}
            (cells[rows],) = run([CELLS], feed)
        return {CELLS: cells}

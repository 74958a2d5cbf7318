"""What a release's localizer takes and gives, and how its cells are read: declared in the manifest."""

from typing import Literal

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from detector.release.contract import CROPS, ROWS, TensorSpec
from detector.release.tensors import ModelOutput

OF_PICTURE = "of_picture"
CELLS = "cells"
CELL_PX: Literal[8] = 8
"""side of a cell of a map, pixels of the picture; as large as a block of JPEG"""

MAX_DIFFERENCE = 2 / 255
"""Two maps are equal where no cell differs by more: what a map as a picture of 8 bits hardly shows."""


class MapContract(BaseModel):
    """The second graph of a release: crops, and which of them are of one picture, to a map of each crop.

    crops: uint8 (rows, S, S, 3), RGB; of_picture: int64 (rows), equal where two crops are of one picture;
    cells: float32 (rows, S / 8, S / 8) in 0..1, how likely each cell is forged. The crops of a picture must
    come in one request, for each is seen beside the others.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    crop_px: int = Field(gt=0, multiple_of=CELL_PX)
    cell_px: Literal[8] = CELL_PX
    threshold: float = Field(gt=0, le=1, description="a cell counts as forged from this on")
    reals_marked: float = Field(
        ge=0,
        le=1,
        description="share of reals with more than 2 % of their cells at the threshold; nothing was fitted on"
        " them",
    )
    reals: int = Field(gt=0, description="how many those were")
    export_difference: float = Field(ge=0, description="largest difference of a cell, onnx against torch")

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        """The arrays that it takes."""
        return map_inputs(self.crop_px)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        """The arrays that it gives."""
        side = self.crop_px // CELL_PX
        return (TensorSpec(name=CELLS, dtype="float32", shape=(ROWS, side, side)),)


def map_inputs(crop_px: int) -> tuple[TensorSpec, ...]:
    """Return the arrays that a localizer of crops of this side takes."""
    return (
        TensorSpec(name=CROPS, dtype="uint8", shape=(ROWS, crop_px, crop_px, 3)),
        TensorSpec(name=OF_PICTURE, dtype="int64", shape=(ROWS,)),
    )


def map_difference(a: ModelOutput, b: ModelOutput) -> float:
    """Return the largest difference of a cell; infinite where the shapes differ or a value is not finite."""
    one, other = a.get(CELLS), b[CELLS]
    if one is None or one.shape != other.shape or not (np.isfinite(one).all() and np.isfinite(other).all()):
        return float("inf")
    return float(np.abs(one - other).max(initial=0.0))

"""What a network is made of. No torch here: whoever only serves a release reads it too."""

import itertools
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

FEATURE_VERSION = "2"
"""Of the forensic features: raise it with every change after which old rows mean something else."""

_WIDTHS = {
    "residuals": 42,
    "autocorrelation": 30,
    "spectrum": 37,
    "blocks": 127,
    "grid": 28,
    "local noise": 18,
    "edges": 18,
    "colour": 42,
}
"""Of the groups of features, in their order."""
FEATURE_WIDTH = sum(_WIDTHS.values())
_TRACES = ("residuals", "spectrum", "local noise", "edges")
_ENDS = dict(zip(_WIDTHS, itertools.accumulate(_WIDTHS.values()), strict=True))
TRACE_COLUMNS: tuple[slice, ...] = tuple(slice(_ENDS[name] - _WIDTHS[name], _ENDS[name]) for name in _TRACES)
"""The columns of those groups that each see one kind of trace: a forgery that disturbs one group alone is
drowned in a distance over all columns."""

NO_BACKBONE = "none"

Channels = tuple[float, float, float]
"""Of red, green and blue, in levels of 0..255."""
_Positive = Annotated[float, Field(gt=0)]
Deviations = tuple[_Positive, _Positive, _Positive]


class Picture(BaseModel):
    """A timm model that looks at the whole picture, resized, beside the forensic network."""

    model_config = ConfigDict(frozen=True)

    backbone: str = Field(description="a timm model's name")
    side_px: int = Field(gt=0, description="of the square that the picture is resized to")
    mean: Channels = Field(description="levels of 0..255 that it is shown as 0")
    deviation: Deviations = Field(description="levels that it is shown as 1")
    weights: str = Field(description="whose its weights are, and under what licence")


class Architecture(BaseModel):
    """Everything that a network's shape follows from, its classes aside. It is in the manifest."""

    model_config = ConfigDict(frozen=True)

    backbone: str = Field("none", description='a timm model\'s name, or "none" for forensic features alone')
    crop_px: int = Field(128, description="side of a crop in pixels")
    forensic: bool = Field(
        True, description="residual front end and forensic branch; without, the backbone sees plain RGB"
    )
    width: int = Field(
        64, gt=0, description="of the backbone's part of the embedding, and of the forensic part"
    )
    head: Literal["linear", "cosine"] = Field(
        "linear", description="linear, or cosines times a learnt scale (CDDB's LinFC and CosFC)"
    )
    dropout: float = Field(0.1, ge=0, lt=1)
    mean: Channels | None = Field(
        None,
        description="levels of 0..255 that the backbone is shown as 0; None: 127.5 beside residuals, else "
        "ImageNet's",
    )
    deviation: Deviations | None = Field(
        None, description="levels that it is shown as 1; None: 127.5 beside residuals, else ImageNet's"
    )
    picture: Picture | None = Field(None, description="None: only crops are seen")
    tasks: tuple[tuple[int, int], ...] | None = Field(
        None,
        description="of a network of task tokens (DyTox): the logits, from and to, that each task's"
        " classifier speaks for; any other network has none",
    )

    @model_validator(mode="after")
    def _reads_something(self) -> Self:
        if self.backbone == NO_BACKBONE and not self.forensic:
            raise ValueError("a network needs a backbone or forensic features")
        return self

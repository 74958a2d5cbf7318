"""What a model takes and gives, declared in its release: read by whoever decodes, asks, serves or checks.

Every array has a name, a dtype and a shape in which a number is a fixed size and a name is an open axis, of
the same size wherever that name stands. The axis "rows" is of what is judged: n items, then their regions.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from detector.release.tensors import TensorsError
from ingest.records import CropPlan, MediaPlan, PicturePlan

ROWS = "rows"
CROPS = "crops"
PICTURE = "picture"
"""The input of models that look at the whole picture; the memory keeps this view, too."""

Size = Annotated[int, Field(ge=0)] | Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]

# The plan of pictures has fields that must be there and allows no others, so it is tried first.
View = Annotated[PicturePlan | CropPlan, Field(union_mode="left_to_right")]


class TensorSpec(BaseModel):
    """One array by name."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    dtype: Literal["uint8", "float32", "int64"]
    shape: tuple[Size, ...] = Field(description="a number is fixed, a name is an open axis")

    def __str__(self) -> str:
        return f"{self.dtype} ({', '.join(map(str, self.shape))})"


class MediaInput(TensorSpec):
    """A view of media: one row for each crop, or for each picture, (its own open axis, height, width, 3).

    An 8-bit channel v becomes (low + v * (high - low) / 255 - mean) / deviation, with low and high of
    `range`; in uint8 it stays as it is.
    """

    view: View
    colour: Literal["RGB"] = "RGB"
    range: tuple[float, float] = (0.0, 255.0)
    mean: tuple[float, float, float] = (0.0, 0.0, 0.0)
    deviation: tuple[float, float, float] = (1.0, 1.0, 1.0)

    @property
    def axis(self) -> str:
        """The open axis of its rows."""
        return str(self.shape[0])

    @model_validator(mode="after")
    def _is_what_the_view_gives(self) -> Self:
        view = self.view
        sides = (view.crop_px,) * 2 if isinstance(view, CropPlan) else (view.height_px, view.width_px)
        if self.shape[1:] != (*sides, 3) or not isinstance(self.shape[0], str):
            raise ValueError(f"{self.name} is {self.shape}, and its view gives (an open axis, {sides}, 3)")
        plain = (self.range, self.mean, self.deviation) == ((0, 255), (0, 0, 0), (1, 1, 1))
        if self.dtype == "int64" or (self.dtype == "uint8" and not plain) or 0 in self.deviation:
            raise ValueError(f"{self.name} as {self.dtype} cannot hold pixels brought to that range")
        return self


class PoolingInput(TensorSpec):
    """float32 (rows, a view's axis), each row summing to 1: of which of the view's rows it is the mean."""

    pools: str = Field(description="the name of the view's input")


Input = Annotated[MediaInput | PoolingInput, Field(union_mode="left_to_right")]

# What a verdict, the memory and the updater read of every model; a model may give more.
_NEEDED = {
    "logits": "float32",
    "embedding": "float32",
    "features": "float32",
    "energy": "float32",
    "novelty": "float32",
    "unknown_score": "float32",
    "neighbour_index": "int64",
    "neighbour_distance": "float32",
}


class Contract(BaseModel):
    """All inputs and outputs of a model.

    One input is called crops and is cut by a CropPlan: that is what the memory keeps. Each view has one
    pooling. The outputs, each of M rows: logits (rows, K), class 0 is real; embedding (rows, D); features
    (rows, F), raw forensic features; energy, novelty and unknown_score (rows), higher means less familiar;
    neighbour_index (rows, n), rows of the reference set, nearest first; neighbour_distance (rows, n), in
    whitened units. A network without forensic features has F = 0, n = 0 and novelty 0. The others are for
    proofs and probes: a release that gives a score of its gate by name is held to it.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    inputs: tuple[Input, ...]
    outputs: tuple[TensorSpec, ...]

    @property
    def views(self) -> tuple[MediaInput, ...]:
        """The inputs that media becomes."""
        return tuple(one for one in self.inputs if isinstance(one, MediaInput))

    @property
    def poolings(self) -> tuple[PoolingInput, ...]:
        """The inputs that say what each row of the output is the mean of."""
        return tuple(one for one in self.inputs if isinstance(one, PoolingInput))

    @property
    def crop_plan(self) -> CropPlan:
        """How the crops are cut."""
        return next(one.view for one in self.views if isinstance(one.view, CropPlan))

    @property
    def picture_plan(self) -> PicturePlan | None:
        """How the whole picture is shown; None for a model that does not see it."""
        return self.media_plan.pictures.get(PICTURE)

    @property
    def media_plan(self) -> MediaPlan:
        """How media is to be decoded for all views."""
        pictures = {one.name: one.view for one in self.views if isinstance(one.view, PicturePlan)}
        return MediaPlan(crops=self.crop_plan, pictures=pictures)

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        names = Counter(one.name for one in (*self.inputs, *self.outputs))
        if twice := [name for name, count in names.items() if count > 1]:
            raise ValueError(f"two arrays are called {', '.join(twice)}")
        if [one.name for one in self.views if isinstance(one.view, CropPlan)] != [CROPS]:
            raise ValueError(f"one input, called {CROPS}, must be cut by a crop plan")
        wanted = sorted((one.name, "float32", (ROWS, one.axis)) for one in self.views)
        if sorted((one.pools, one.dtype, one.shape) for one in self.poolings) != wanted:
            raise ValueError(f"each view needs one pooling of its own, float32 ({ROWS}, its axis)")
        if len({ROWS, *(one.axis for one in self.views)}) <= len(self.views):
            raise ValueError("two views share an axis")
        given = {one.name: one.dtype for one in self.outputs}
        if wrong := [name for name, dtype in _NEEDED.items() if given.get(name) != dtype]:
            raise ValueError(f"the outputs lack {', '.join(wrong)}, or have it as another dtype")
        if wrong := [one.name for one in self.outputs if one.shape[:1] != (ROWS,)]:
            raise ValueError(f"not by {ROWS}: {', '.join(wrong)}")
        return self


def crops_and_pooling(plan: CropPlan) -> tuple[Input, ...]:
    """Return the inputs of a model that sees crops alone, as uint8."""
    shape = (CROPS, plan.crop_px, plan.crop_px, 3)
    return (
        MediaInput(name=CROPS, dtype="uint8", shape=shape, view=plan),
        PoolingInput(name="pooling", dtype="float32", shape=(ROWS, CROPS), pools=CROPS),
    )


def picture_and_pooling(plan: PicturePlan) -> tuple[Input, ...]:
    """Return what a model takes beside the crops that also sees the whole picture, as uint8."""
    shape = ("pictures", plan.height_px, plan.width_px, 3)
    return (
        MediaInput(name=PICTURE, dtype="uint8", shape=shape, view=plan),
        PoolingInput(name="picture_pooling", dtype="float32", shape=(ROWS, "pictures"), pools=PICTURE),
    )


def conform(
    arrays: Mapping[str, NDArray[Any]], specs: Sequence[TensorSpec], sizes: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Return the size of every open axis. Raises TensorsError unless the arrays are those, and no others.

    sizes: of open axes that are known already.
    """
    known = dict(sizes or {})
    if arrays.keys() != {one.name for one in specs}:
        expected, got = (", ".join(sorted(names)) for names in ({one.name for one in specs}, arrays))
        raise TensorsError(f"expected {expected}; got {got or 'nothing'}")
    for one in specs:
        array = arrays[one.name]
        fits = array.dtype == one.dtype and array.ndim == len(one.shape)
        for size, found in zip(one.shape, array.shape, strict=False):
            fits = fits and found == (known.setdefault(size, found) if isinstance(size, str) else size)
        if not fits:
            open_axes = ", ".join(f"{name} {size}" for name, size in known.items())
            raise TensorsError(
                f"{one.name} is {array.dtype} {array.shape}, this model has {one} with {open_axes}"
            )
    return known

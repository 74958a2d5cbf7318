"""The detector's declaration, and the requests that keep it: views of media, and the pooling of rows.

The axis "rows" is of what is judged: n items, then their regions.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

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
from ingest.records import CropPlan, Decoded, MediaPlan, PicturePlan, Region

PICTURE = "picture"
"""The input of models that look at the whole picture; the memory keeps this view, too."""

_RUN_CROPS = 8
"""Most crops of one run of the graph: what larger ones write between two layers fits no cache. 32 crops
at once were seen to take a quarter to a third more processor time a crop, at 128 px and at 224 px."""

# The plan of pictures has fields that must be there and allows no others, so it is tried first.
View = Annotated[PicturePlan | CropPlan, Field(union_mode="left_to_right")]


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


class Contract(GraphContract):
    """All inputs and outputs of a model.

    One input is called crops and is cut by a CropPlan: that is what the memory keeps. Each view has one
    pooling. The outputs, each of M rows: logits (rows, K), class 0 is real; embedding (rows, D); features
    (rows, F), raw forensic features; energy, novelty and unknown_score (rows), higher means less familiar;
    neighbour_index (rows, n), rows of the reference set, nearest first; neighbour_distance (rows, n), in
    whitened units. A network without forensic features has F = 0, n = 0 and novelty 0. The others are for
    proofs and probes: a release that gives a score of its gate by name is held to it.
    """

    inputs: tuple[Input, ...]
    outputs: tuple[TensorSpec, ...]

    @property
    def views(self) -> tuple[MediaInput, ...]:
        return tuple(spec for spec in self.inputs if isinstance(spec, MediaInput))

    @property
    def poolings(self) -> tuple[PoolingInput, ...]:
        """The inputs that pool rows of a view to rows of the output."""
        return tuple(spec for spec in self.inputs if isinstance(spec, PoolingInput))

    @property
    def crop_plan(self) -> CropPlan:
        return next(view.view for view in self.views if isinstance(view.view, CropPlan))

    @property
    def picture_plan(self) -> PicturePlan | None:
        """How the whole picture is shown; None for a model that does not see it."""
        return self.media_plan.pictures.get(PICTURE)

    @property
    def media_plan(self) -> MediaPlan:
        """How media is to be decoded for all views."""
        pictures = {spec.name: spec.view for spec in self.views if isinstance(spec.view, PicturePlan)}
        return MediaPlan(crops=self.crop_plan, pictures=pictures)

    @property
    def most_of_item(self) -> int:
        """As many rows as an item has of a view by the plan, and MOST_CROPS at least."""
        plan = self.crop_plan
        return max(MOST_CROPS, plan.frames * (plan.patches + plan.faces * plan.face_patches))

    def run_graph(self, run: Run, request: Request) -> ModelOutput:
        """Score rows by runs of few crops; each row is in one run with all crops that it is pooled from.

        Raises TensorsError where those are more than an item can have: a run's memory grows with them.
        """
        names = [spec.name for spec in self.outputs]
        poolings = [(spec.shape[1], request[spec.name]) for spec in self.poolings]
        runs = list(_runs([pooling for _, pooling in poolings], _RUN_CROPS))
        longest = max(span.stop - span.start for _, spans in runs for span in spans)
        if longest > self.most_of_item:
            most = f"an item has at most {self.most_of_item}"
            raise TensorsError(f"{longest} crops are pooled together: {most}")
        parts = []
        for rows, spans in runs:
            places = {ROWS: rows} | {axis: span for (axis, _), span in zip(poolings, spans, strict=True)}
            feed = {spec.name: _part(request[spec.name], spec.shape, places) for spec in self.inputs}
            parts.append(run(names, feed))
        order = np.argsort(np.concatenate([rows for rows, _ in runs]))
        columns = zip(names, zip(*parts, strict=True), strict=True)
        return {name: np.concatenate(of_runs)[order] for name, of_runs in columns}

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        names = Counter(spec.name for spec in (*self.inputs, *self.outputs))
        if twice := [name for name, count in names.items() if count > 1]:
            raise ValueError(f"two arrays are called {', '.join(twice)}")
        if [spec.name for spec in self.views if isinstance(spec.view, CropPlan)] != [CROPS]:
            raise ValueError(f"one input, called {CROPS}, must be cut by a crop plan")
        wanted = sorted((spec.name, "float32", (ROWS, spec.axis)) for spec in self.views)
        if sorted((spec.pools, spec.dtype, spec.shape) for spec in self.poolings) != wanted:
            raise ValueError(f"each view needs one pooling of its own, float32 ({ROWS}, its axis)")
        if len({ROWS, *(spec.axis for spec in self.views)}) <= len(self.views):
            raise ValueError("two views share an axis")
        given = {spec.name: spec.dtype for spec in self.outputs}
        if wrong := [name for name, dtype in _NEEDED.items() if given.get(name) != dtype]:
            raise ValueError(f"the outputs lack {', '.join(wrong)}, or have it as another dtype")
        if wrong := [spec.name for spec in self.outputs if spec.shape[:1] != (ROWS,)]:
            raise ValueError(f"not by {ROWS}: {', '.join(wrong)}")
        return self


def crops_and_pooling(plan: CropPlan) -> tuple[Input, ...]:
    """Return the inputs of a model that sees crops alone, as uint8."""
    return _view_and_pooling(CROPS, CROPS, "pooling", plan, (plan.crop_px, plan.crop_px))


def picture_and_pooling(plan: PicturePlan) -> tuple[Input, ...]:
    """Return the inputs beside the crops of a model that also sees the whole picture, as uint8."""
    return _view_and_pooling(PICTURE, "pictures", "picture_pooling", plan, (plan.height_px, plan.width_px))


def _view_and_pooling(
    name: str, axis: str, pooling: str, plan: CropPlan | PicturePlan, sides: tuple[int, int]
) -> tuple[Input, ...]:
    return (
        MediaInput(name=name, dtype="uint8", shape=(axis, *sides, 3), view=plan),
        PoolingInput(name=pooling, dtype="float32", shape=(ROWS, axis), pools=name),
    )


def _part(
    array: NDArray[Any], shape: Sequence[int | str], places: dict[int | str, list[int] | slice]
) -> NDArray[Any]:
    """Cut an array to the run's place on each of its open axes."""
    return np.ascontiguousarray(array[tuple(places.get(axis, slice(None)) for axis in shape)])


def _runs(poolings: Sequence[NDArray[np.float32]], most: int) -> Iterator[tuple[list[int], list[slice]]]:
    """Share the rows of all poolings (M, N of each view) out: rows, with their span of each view.

    No row of another run needs a row of these spans, as long as the views are in one order. A span has at
    most `most` rows, or more where rows that overlap need them.
    """
    used = [pooling != 0 for pooling in poolings]
    first = np.stack([crops.argmax(1) for crops in used])
    past = np.stack([crops.shape[1] - crops[:, ::-1].argmax(1) for crops in used])
    rows: list[int] = []
    start = stop = np.zeros(len(poolings), int)
    for row in np.argsort(first[0], kind="stable"):
        if rows and (first[:, row] >= stop).all() and (past[:, row] > start + most).any():
            yield rows, [slice(*span) for span in zip(start, stop, strict=True)]
            rows = []
        start = np.minimum(start, first[:, row]) if rows else first[:, row]
        stop = np.maximum(stop, past[:, row]) if rows else past[:, row]
        rows.append(int(row))
    yield rows, [slice(*span) for span in zip(start, stop, strict=True)]


_HEADER_BYTES = 256
"""What safetensors writes of one array before them all, at the most."""


def request_for(
    items: Sequence[Decoded], contract: Contract, apart: Sequence[tuple[int, Region]] = ()
) -> dict[str, NDArray[Any]]:
    """Return the contract's inputs for n items.

    A view is the items' rows of it, one after the other. A pooling has a row for each item, the mean over
    the item's rows of the view, and after these one for each region in the items' order, the mean over the
    rows that show it; behind these one for each of apart, a part of an item with the item's place. Raises
    ValueError when there is no item, or an item has no crop.
    """
    if not items or any(len(item.crops) == 0 for item in items):
        raise ValueError("every item needs a crop")
    request: dict[str, NDArray[Any]] = {}
    for view in contract.views:
        request[view.name] = _as_declared(np.concatenate([item.view(view.name) for item in items]), view)
    for pooling in contract.poolings:
        request[pooling.name] = _pooling(items, pooling.pools, apart)
    return request


def body_bytes(items: Sequence[Decoded], contract: Contract) -> int:
    """Bound from above the body of a request of n items, bytes, with a video's crops apart."""
    rows = sum(1 + len(item.regions) + (len(item.crops) if item.kind == "video" else 0) for item in items)
    total = _HEADER_BYTES * len(contract.inputs)
    for view in contract.views:
        pixels = [item.view(view.name) for item in items]
        total += sum(array.nbytes * np.dtype(view.dtype).itemsize for array in pixels)
        total += rows * sum(map(len, pixels)) * np.dtype(np.float32).itemsize
    return total


def _as_declared(pixels: NDArray[np.uint8], view: MediaInput) -> NDArray[Any]:
    if view.dtype == "uint8":
        return pixels
    low, high = view.range
    brought = low + pixels.astype(np.float32) * ((high - low) / 255)
    declared: NDArray[Any] = (brought - np.array(view.mean)) / np.array(view.deviation)
    return declared.astype(view.dtype)


def _pooling(items: Sequence[Decoded], view: str, apart: Sequence[tuple[int, Region]]) -> NDArray[np.float32]:
    starts = np.cumsum([0, *(len(item.view(view)) for item in items)])
    parts = [(place, region) for place, item in enumerate(items) for region in item.regions]
    parts += apart
    pooling = np.zeros((len(items) + len(parts), starts[-1]), np.float32)
    for i in range(len(items)):
        pooling[i, starts[i] : starts[i + 1]] = 1 / (starts[i + 1] - starts[i])
    for row, (place, region) in enumerate(parts, len(items)):
        rows = items[place].rows_of(region, view)
        pooling[row, starts[place] + np.asarray(rows)] = 1 / len(rows)
    return pooling

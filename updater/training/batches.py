"""A batch of training, drawn by its number alone, and the network's output for it.

A batch is drawn ahead of time, or again after a break. `ready_images` and `ready_rows` bring it to the
device; other threads may, while earlier batches are trained on. `pass_batch` is the training itself.
"""

import os
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from detector.model.network import Network
from detector.model.scores import NetworkOutput
from updater import draws
from updater.outliers.exposure import Exposure
from updater.training.crop_rows import Crops, Rows, as_images, draw_crops, forensics_of, in_turn, rows_at
from updater.training.fit import half_precision
from updater.training.processes import by_share
from updater.training.step import Step

_BESIDE_A_GPU = 4
"""batches that are made together there: one by one, launching what computes their features takes as long as
training a small network"""
_AT_ONCE = 16

T = TypeVar("T")


@dataclass(frozen=True)
class TrainingSet:
    """n items of a step, its pseudo-forgeries among them, and arrays computed once for all epochs."""

    targets: npt.NDArray[np.int64]
    """[n], the logit of each item; K, the number of logits, for a pseudo-forgery"""
    fake: Tensor
    """bool [K]"""
    crops: Crops
    """uint8 [T, S, S, 3]"""
    starts: npt.NDArray[np.int64]
    """[n + 1]"""
    features: Rows
    """float32 [T, F], raw forensic features; F is 0 where there are none"""
    exposure: Exposure | None = None
    """where fresh pseudo-forgeries come from; None where there are none"""

    @property
    def known_items(self) -> npt.NDArray[np.int64]:
        """The items that are no pseudo-forgeries."""
        return np.flatnonzero(self.targets < len(self.fake))


@dataclass(frozen=True)
class Drawn:
    """M items of a training set, a crop of each, and the options' additions."""

    torch_seed: int
    """of what the network draws in this batch"""
    items: npt.NDArray[np.int64]
    """[M]"""
    rows: npt.NDArray[np.int64]
    """[M], the items' crops among those of the training set: each has to carry its item's class alone"""
    outliers: npt.NDArray[np.uint8] | None = None
    """[M', S, S, 3]: fresh pseudo-forgeries, a crop of each"""
    mirrored: npt.NDArray[np.bool_] | None = None
    """[M], which of the crops the backbone sees from left to right turned round; None: none of them"""
    mixed: float | None = None
    """the share of each crop beside that of its partner, in the batch turned round; None: none is mixed"""
    shifts: npt.NDArray[np.int64] | None = None
    """[M, 2], in px, how far down and right the backbone sees each crop moved; None: none of them"""


def draw(
    step: Step, data: TrainingSet, chances: npt.NDArray[np.float64], number: int, on_crops: bool
) -> Drawn:
    """Draw batch `number` of a stage; the same arguments give the same batch.

    chances: float64 [n], the running sums of the chance of each item. on_crops: whether the backbone is
    trained, on crops. A pseudo-forgery that is drawn then makes way for a fresh one.
    """
    rng = draws.SeedPurpose.BATCHES.generator(step.seed, int(on_crops), number)
    torch_seed = int(rng.integers(2**31))
    items = draws.draw(rng, chances, step.recipe.batch)
    outliers = None
    if on_crops and data.exposure is not None:
        known = data.targets[items] < len(data.fake)
        if not known.all():
            fresh = draws.SeedPurpose.FRESH_FORGERIES.generator(step.seed, number)
            outliers = np.concatenate([data.exposure.anew(fresh) for _ in items[~known]])
        items = items[known]
    rows = draw_crops(rng, items, data.starts)
    mirrored = rng.random(len(rows)) < 0.5 if on_crops and step.recipe.flip else None
    most = step.recipe.shift_px if on_crops else 0
    shifts = rng.integers(-most, most, (len(rows), 2), endpoint=True) if most else None
    mixed = rng.beta(step.recipe.mixup, step.recipe.mixup) if on_crops and step.recipe.mixup else None
    return Drawn(torch_seed, items, rows, outliers, mirrored, mixed, shifts)


def ahead(ready: Callable[[range], list[T]], numbers: range, beside_a_gpu: bool) -> Generator[T, None, None]:
    """Yield what `ready` makes of each number in order, made in threads while earlier ones are trained on.

    It gets some numbers in a row, and is to depend on nothing else: several such runs may be made at once.

    Forging takes several ms a crop, which a GPU cannot wait for; on a CPU one thread does, since the others
    train. Close the iterator to end the threads.
    """
    threads, size = (min(8, os.cpu_count() or 1), _BESIDE_A_GPU) if beside_a_gpu else (1, 1)
    pool = ThreadPoolExecutor(threads)
    try:
        runs = (numbers[start : start + size] for start in range(0, len(numbers), size))
        for run in in_turn(pool, ready, runs, max(threads, 2)):
            yield from run
    finally:
        pool.shutdown(cancel_futures=True)


def at_once(ready: Callable[[int], T], numbers: range) -> Generator[T, None, None]:
    """Yield ready(number) for each number in order, made for several numbers in a row.

    A batch of rows is drawn in less time than its training leaves of the processor's caches: one by one,
    that takes four times as long.
    """
    for start in range(0, len(numbers), _AT_ONCE):
        yield from [ready(number) for number in numbers[start : start + _AT_ONCE]]


@dataclass(frozen=True)
class Batch:
    """M items of a training set and the network's output; mixed: as of `Drawn`."""

    output: NetworkOutput
    items: Tensor
    """int64 [M], on the device: rows of whatever is kept by item, such as a teacher's logits"""
    target: Tensor
    """int64 [M]"""
    crops: npt.NDArray[np.int64]
    """[M], rows of whatever is kept by crop; those that the items were seen by"""
    outliers: NetworkOutput | None = None
    """of pseudo-forgeries drawn anew for this batch, which are no items; None in a stage on rows"""
    mixed: float | None = None


@dataclass(frozen=True)
class PreparedBatch:
    """A drawn batch as tensors on the device. Of a network nothing is asked yet."""

    drawn: Drawn
    parts: tuple[Tensor, ...]
    """in a stage on crops images, float32 [., 3, S, S]: the items', and fresh pseudo-forgeries' if any;
    in one on rows what the backbone made of each item, float32 [M, B]"""
    features: tuple[Tensor, ...]
    """float32 [., F] each: the raw forensic features of the same"""

    @property
    def images(self) -> int:
        """How many images pass through the backbone; 0 in a stage on rows."""
        return sum(len(part) for part in self.parts if part.ndim == 4)


def ready_images(step: Step, data: TrainingSet, network: Network, drawn: list[Drawn]) -> list[PreparedBatch]:
    """Bring the crops of batches to the device, with the forensic features of fresh pseudo-forgeries."""
    fresh = [as_images(batch.outliers, step.device) for batch in drawn if batch.outliers is not None]
    forensics = forensics_of(network, torch.cat(fresh)) if fresh else torch.empty(0)
    forged, ready = zip(fresh, torch.split(forensics, [len(part) for part in fresh]), strict=True), []
    for batch in drawn:
        seen = data.crops[batch.rows]
        if batch.mirrored is not None:
            seen = mirror_crops(seen, batch.mirrored)
        if batch.shifts is not None:
            seen = shift_crops(seen, batch.shifts)
        own: tuple[Tensor, ...] = (
            as_images(seen, step.device),
            rows_at(data.features, batch.rows, step.device),
        )
        if (share := batch.mixed) is not None:
            own = tuple(share * part + (1 - share) * part.flip(0) for part in own)
        pairs = [own, next(forged)] if batch.outliers is not None else [own]
        ready.append(PreparedBatch(batch, *zip(*pairs, strict=True)))
    return ready


def mirror_crops(crops: npt.NDArray[np.uint8], which: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    """Return crops, uint8 [N, S, S, 3], of which those (bool [N]) are turned round from left to right."""
    return np.where(which[:, None, None, None], crops[:, :, ::-1], crops)


def shift_crops(crops: npt.NDArray[np.uint8], by: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Return crops, uint8 [N, S, S, 3], each moved down and right by so many pixels (int64 [N, 2])."""
    moved, side = np.zeros_like(crops), crops.shape[1]
    for into, crop, (down, right) in zip(moved, crops, by, strict=True):
        rows, columns = slice(max(down, 0), side + min(down, 0)), slice(max(right, 0), side + min(right, 0))
        into[rows, columns] = np.roll(crop, (down, right), (0, 1))[rows, columns]
    return moved


def ready_rows(step: Step, data: TrainingSet, drawn: Drawn, rows: Rows) -> PreparedBatch:
    """Take a batch's rows; rows: float32 [T, B], the backbone's features of every crop."""
    seen, features = (rows_at(array, drawn.rows, step.device) for array in (rows, data.features))
    return PreparedBatch(drawn, (seen,), (features,))


def pass_batch(step: Step, data: TrainingSet, network: Network, ready: PreparedBatch) -> Batch:
    """Pass a batch through the network: crops from its beginning, rows above the backbone."""
    seen = ready.parts
    if ready.images:
        rows = _backbone(network, torch.cat(ready.parts))
        seen = torch.split(rows, [len(part) for part in ready.parts])
    output, *outliers = (network.classify(*pair) for pair in zip(seen, ready.features, strict=True))
    return Batch(
        output=output,
        items=torch.from_numpy(ready.drawn.items).to(step.device),
        target=torch.from_numpy(data.targets[ready.drawn.items]).to(step.device),
        crops=ready.drawn.rows,
        outliers=outliers[0] if outliers else None,
        mixed=ready.drawn.mixed,
    )


def _backbone(network: Network, images: Tensor) -> Tensor:
    """Return the backbone's features of images, float32 [N, B], for training it."""

    def features(own: Tensor) -> Tensor:
        # As its images are, see `as_images`.
        front = network.front(own).contiguous(memory_format=torch.channels_last)
        with half_precision(own.device):
            rows: Tensor = network.backbone(front)
        return rows.float()

    return by_share(features, images)

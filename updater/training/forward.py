"""What the network says of a drawn batch: of its items, and of what the options add to them.

`ready_images` and `ready_pools` bring a batch to the device; other threads may, while earlier batches are
trained on. `on_crops` and `on_rows` are the training itself.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from detector.model.network import Network
from detector.model.scores import NetworkOutput
from updater.training.batches import Drawn, TrainingSet
from updater.training.crop_rows import Rows, as_images
from updater.training.pools import forensics_of, rows_at
from updater.training.precision import half_precision
from updater.training.processes import by_share
from updater.training.step import Step


@dataclass(frozen=True)
class Batch:
    """M items of a training set and what the network says of them."""

    output: NetworkOutput
    items: Tensor
    """int64 [M], on the device: rows of whatever is kept by item, such as a teacher's logits"""
    target: Tensor
    """int64 [M]"""
    crops: Tensor
    """int64 [M], on the device: rows of whatever is kept by crop; those that the items were seen by"""
    outliers: NetworkOutput | None = None
    """of pseudo-forgeries drawn anew for this batch, which are no items; None in a stage on rows"""


@dataclass(frozen=True)
class Images:
    """A drawn batch as tensors on the device, for a stage on crops. Of a backbone nothing is asked yet."""

    drawn: Drawn
    parts: tuple[Tensor, ...]
    """float32 [., 3, S, S] each: the items' crops, and fresh pseudo-forgeries' if any"""
    features: tuple[Tensor, ...]
    """float32 [., F] each: the raw forensic features of the same"""


@dataclass(frozen=True)
class Pools:
    """A drawn batch as tensors on the device, for a stage on rows."""

    drawn: Drawn
    seen: Tensor
    """float32 [M, B]: what the backbone made of each item"""
    features: Tensor
    """float32 [M, F]: its raw forensic features"""


def ready_images(step: Step, data: TrainingSet, network: Network, drawn: Drawn) -> Images:
    """Bring a batch's crops to the device, with the forensic features of fresh pseudo-forgeries."""
    at, seen = torch.from_numpy(drawn.rows).to(step.device), data.crops[drawn.rows]
    if drawn.mirrored is not None:
        seen = mirrored(seen, drawn.mirrored)
    if drawn.shifts is not None:
        seen = shifted(seen, drawn.shifts)
    parts = [as_images(seen, step.device)]
    if drawn.outliers is not None:
        parts.append(as_images(drawn.outliers, step.device))
    features = [rows_at(data.features, at), *(forensics_of(network, part) for part in parts[1:])]
    return Images(drawn, tuple(parts), tuple(features))


def mirrored(crops: npt.NDArray[np.uint8], which: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint8]:
    """Return crops, uint8 [N, S, S, 3], of which those (bool [N]) are turned round from left to right."""
    return np.where(which[:, None, None, None], crops[:, :, ::-1], crops)


def shifted(crops: npt.NDArray[np.uint8], by: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Return crops, uint8 [N, S, S, 3], each moved down and right by so many pixels (int64 [N, 2])."""
    moved, side = np.zeros_like(crops), crops.shape[1]
    for into, crop, (down, right) in zip(moved, crops, by, strict=True):
        rows, columns = slice(max(down, 0), side + min(down, 0)), slice(max(right, 0), side + min(right, 0))
        into[rows, columns] = np.roll(crop, (down, right), (0, 1))[rows, columns]
    return moved


def on_crops(step: Step, data: TrainingSet, network: Network, ready: Images, pieces: int = 1) -> Batch:
    """Pass a batch's crops through the whole network, all of them at once or in so many pieces."""
    rows = _backbone(network, torch.cat(ready.parts), pieces)
    seen = torch.split(rows, [len(part) for part in ready.parts])
    outputs = [network.classify(*pair) for pair in zip(seen, ready.features, strict=True)]
    return _batch(step, data, ready.drawn, outputs[0], outputs[1] if len(outputs) > 1 else None)


def ready_pools(step: Step, data: TrainingSet, drawn: Drawn, rows: Rows) -> Pools:
    """Take a batch's rows; rows: float32 [T, B], the backbone's features of every crop."""
    at = torch.from_numpy(drawn.rows).to(step.device)
    return Pools(drawn, rows_at(rows, at), rows_at(data.features, at))


def on_rows(step: Step, data: TrainingSet, network: Network, ready: Pools) -> Batch:
    """Pass a batch's rows through what lies above the backbone."""
    return _batch(step, data, ready.drawn, network.classify(ready.seen, ready.features), None)


def _backbone(network: Network, images: Tensor, pieces: int) -> Tensor:
    """Return the backbone's features of images, float32 [N, B], for training it."""

    def features(own: Tensor) -> Tensor:
        # As its images are, see `as_images`.
        front = network.front(own).contiguous(memory_format=torch.channels_last)
        with half_precision(own.device):
            found: Tensor = network.backbone(front)
        return found.float()

    return by_share(lambda own: in_pieces(features, own, pieces), images)


def _batch(
    step: Step, data: TrainingSet, drawn: Drawn, output: NetworkOutput, outliers: NetworkOutput | None
) -> Batch:
    device = step.device
    return Batch(
        output=output,
        items=torch.from_numpy(drawn.items).to(device),
        target=torch.from_numpy(data.targets[drawn.items]).to(device),
        crops=torch.from_numpy(drawn.rows).to(device),
        outliers=outliers,
    )


def in_pieces(function: Callable[[Tensor], Tensor], rows: Tensor, pieces: int) -> Tensor:
    """Return function(rows), which has a row for each of them, computed in so many pieces.

    A piece passes forwards alone, and once more going back: only its result is kept (Chen et al. 2016,
    "Training deep nets with sublinear memory cost"). The loss is computed on the results of all pieces. So a
    step is that of the whole batch, whatever the loss is over: pairs, means over some items, extrema. Batch
    normalisation in training is the exception: its statistics are of a piece, and its running ones move each
    time that a piece passes. What a backbone draws at random by itself (dropout, drop path) is drawn for
    each piece.
    """
    if pieces == 1:
        return function(rows)
    made = [checkpoint(function, piece, use_reentrant=False) for piece in rows.tensor_split(pieces)]
    return torch.cat(made)

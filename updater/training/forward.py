"""What the network says of a drawn batch: of its items, and of what the options add to them.

`ready_images` and `ready_pools` bring a batch to the device; other threads may, while earlier batches are
trained on. `on_crops` and `on_rows` are the training itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from detector.model.network import Network
from detector.model.scores.score import NetworkOutput
from updater.training.batches import Drawn, TrainingSet
from updater.training.crop_rows import Rows, as_images
from updater.training.pieces import in_pieces
from updater.training.pools import backbone_rows, forensic_rows, forensics_of, rows_at
from updater.training.precision import half_precision
from updater.training.processes import by_share
from updater.training.regularisers import augmix, regmixup
from updater.training.step import Step

Version = tuple[Rows, Rows]
"""of every crop: the backbone's features, float32 [T, B], and the raw forensic ones, float32 [T, F]"""


@dataclass(frozen=True)
class Batch:
    """M items of a training set and what the network says of them."""

    output: NetworkOutput
    items: Tensor
    """int64 [M], on the device: rows of whatever is kept by item, such as a teacher's logits"""
    target: Tensor
    """int64 [M]"""
    crops: Tensor
    """int64 [N], on the device: rows of whatever is kept by crop; those that the items were seen by"""
    pooling: Tensor
    """float32 [M, N], from these crops to the items"""
    network: Network
    """that says it, for a loss that reads the embedding otherwise"""
    outliers: NetworkOutput | None = None
    """of pseudo-forgeries drawn anew for this batch, which are no items; None in a stage on rows"""
    views: tuple[NetworkOutput, ...] = ()
    """of other versions of the items, for AugMix, or of their mixture with others, for RegMixup"""
    partner: Tensor | None = None
    """int64 [M]: for RegMixup, the place of the item that each is mixed with"""
    share: float = 1.0
    """for RegMixup, each item's own part of the mixture"""


@dataclass(frozen=True)
class Images:
    """A drawn batch as tensors on the device, for a stage on crops. Of a backbone nothing is asked yet."""

    drawn: Drawn
    parts: tuple[Tensor, ...]
    """float32 [., 3, S, S] each: the items' crops, fresh pseudo-forgeries' if any, each view's"""
    features: tuple[Tensor, ...]
    """float32 [., F] each: the raw forensic features of the same"""
    pools: tuple[Tensor, ...]
    """float32 [M, .] each: from the same to items"""


@dataclass(frozen=True)
class Pools:
    """A drawn batch as tensors on the device, for a stage on rows: the items, then other versions of them."""

    drawn: Drawn
    parts: tuple[tuple[Tensor, Tensor], ...]
    """float32 [M, B] and [M, F] each"""


def ready_images(step: Step, data: TrainingSet, network: Network, drawn: Drawn) -> Images:
    """Bring a batch's crops to the device, all versions of them, with the forensic features of fresh ones."""
    pooling, at = drawn.pooling.to(step.device), torch.from_numpy(drawn.rows).to(step.device)
    own, mixing = data.crops[drawn.rows], drawn.mixing
    seen = own if drawn.mirrored is None else mirrored(own, drawn.mirrored)
    if drawn.shifts is not None:
        seen = shifted(seen, drawn.shifts)
    parts, pools = [as_images(seen, step.device)], [pooling]
    if drawn.outliers is not None:
        parts.append(as_images(drawn.outliers, step.device))
        pools.append(drawn.outlier_pooling.to(step.device))
    views: list[npt.NDArray[np.uint8] | npt.NDArray[np.float32]] = [*drawn.augmented]
    if mixing is not None and _mixes_crops(step):
        views.append(regmixup.mixed_crops(own, drawn.owners, mixing))
    parts += [as_images(one, step.device) for one in views]
    pools += [pooling] * len(views)
    features = [rows_at(data.features, at), *(forensics_of(network, one) for one in parts[1:])]
    return Images(drawn, tuple(parts), tuple(features), tuple(pools))


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
    """Pass a batch's crops through the whole network: all versions of them at once, or in so many pieces."""
    drawn, features, pools = ready.drawn, ready.features, ready.pools
    found = _backbone(network, torch.cat(ready.parts), pieces)
    seen = torch.split(found, [len(one) for one in ready.parts])
    said = [network.classify(p @ s, p @ f) for p, s, f in zip(pools, seen, features, strict=True)]
    fresh = said[1] if drawn.outliers is not None else None
    outputs = [said[0], *said[1 if fresh is None else 2 :]]
    if drawn.mixing is not None and not _mixes_crops(step):
        outputs.append(_mixed(network, pools[0] @ seen[0], pools[0] @ features[0], drawn.mixing))
    return _batch(step, data, network, drawn, outputs, fresh)


def _mixes_crops(step: Step) -> bool:
    return regmixup.KIND not in step.without


def ready_pools(step: Step, drawn: Drawn, versions: Sequence[Version]) -> Pools:
    """Pool a batch's rows, and other versions of them."""
    pooling, at = drawn.pooling.to(step.device), torch.from_numpy(drawn.rows).to(step.device)
    # Where each item is seen by one crop, a pool is its crop.
    one_each = pooling.shape[0] == pooling.shape[1]

    def pooled(values: Rows) -> Tensor:
        return rows_at(values, at) if one_each else pooling @ rows_at(values, at)

    return Pools(drawn, tuple((pooled(seen), pooled(features)) for seen, features in versions))


def on_rows(step: Step, data: TrainingSet, network: Network, ready: Pools) -> Batch:
    """Pass a batch's pooled rows, and other versions of them, through what lies above the backbone."""
    outputs = [network.classify(*pair) for pair in ready.parts]
    if ready.drawn.mixing is not None:
        outputs.append(_mixed(network, *ready.parts[0], ready.drawn.mixing))
    return _batch(step, data, network, ready.drawn, outputs, None)


def other_versions(step: Step, data: TrainingSet, network: Network) -> list[Version]:
    """Return the rows of AugMix's versions of every crop, drawn once for a stage on rows; else nothing."""
    found = []
    for number in range(augmix.VERSIONS if step.options.rejection == "augmix" else 0):
        rng = np.random.default_rng([step.seed, 5, number])
        crops = augmix.augment_all(rng, data.crops, step.without)
        found.append((backbone_rows(network, crops, step.device), forensic_rows(network, crops, step.device)))
    return found


def _backbone(network: Network, images: Tensor, pieces: int) -> Tensor:
    """Return the backbone's features of images, float32 [N, B], for training it."""

    def features(own: Tensor) -> Tensor:
        # As its images are, see `as_images`.
        front = network.front(own).contiguous(memory_format=torch.channels_last)
        with half_precision(own.device):
            found: Tensor = network.backbone(front)
        return found.float()

    return by_share(lambda own: in_pieces(features, own, pieces), images)


def _mixed(network: Network, seen: Tensor, features: Tensor, mixing: regmixup.Mixing) -> NetworkOutput:
    partner = torch.from_numpy(mixing.partner).to(seen.device)
    own, other = mixing.share, 1 - mixing.share
    return network.classify(own * seen + other * seen[partner], own * features + other * features[partner])


def _batch(
    step: Step,
    data: TrainingSet,
    network: Network,
    drawn: Drawn,
    outputs: Sequence[NetworkOutput],
    outliers: NetworkOutput | None,
) -> Batch:
    device, mixing = step.device, drawn.mixing
    return Batch(
        output=outputs[0],
        items=torch.from_numpy(drawn.items).to(device),
        target=torch.from_numpy(data.targets[drawn.items]).to(device),
        crops=torch.from_numpy(drawn.rows).to(device),
        pooling=drawn.pooling.to(device),
        network=network,
        outliers=outliers,
        views=tuple(outputs[1:]),
        partner=None if mixing is None else torch.from_numpy(mixing.partner).to(device),
        share=1.0 if mixing is None else mixing.share,
    )

"""What the network says of a drawn batch: of its items, and of what the options add to them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from detector.network import Network, NetworkOutput
from updater.learners.batches import Drawn, TrainingSet
from updater.learners.pools import as_images, backbone_rows, forensic_rows, forensics_of
from updater.learners.precision import half_precision
from updater.learners.processes import by_share
from updater.learners.step import Step
from updater.rejection.training import aug_mix, reg_mixup

Rows = tuple[Tensor, Tensor]
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


def on_crops(step: Step, data: TrainingSet, network: Network, drawn: Drawn) -> Batch:
    """Pass a batch's crops through the whole network, all versions of them at once."""
    pooling, at = drawn.pooling.to(step.device), torch.from_numpy(drawn.rows).to(step.device)
    own, mixing = data.crops[drawn.rows], drawn.mixing
    images, pools = [as_images(own, step.device)], [pooling]
    if drawn.outliers is not None:
        images.append(as_images(drawn.outliers, step.device))
        pools.append(drawn.outlier_pooling.to(step.device))
    views: list[npt.NDArray[np.uint8] | npt.NDArray[np.float32]] = [*drawn.augmented]
    mixes_crops = mixing is not None and reg_mixup.KIND not in step.without
    if mixing is not None and mixes_crops:
        views.append(reg_mixup.mixed_crops(own, drawn.owners, mixing))
    images += [as_images(one, step.device) for one in views]
    pools += [pooling] * len(views)
    seen = torch.split(_backbone(network, torch.cat(images)), [len(one) for one in images])
    features = [data.features[at], *(forensics_of(network, one) for one in images[1:])]
    said = [network.classify(p @ s, p @ f) for p, s, f in zip(pools, seen, features, strict=True)]
    outputs = [said[0], *said[len(said) - len(views) :]]
    if mixing is not None and not mixes_crops:
        outputs.append(_mixed(network, pooling @ seen[0], pooling @ features[0], mixing))
    return _batch(step, data, network, drawn, outputs, None if drawn.outliers is None else said[1])


def on_rows(step: Step, data: TrainingSet, network: Network, drawn: Drawn, versions: Sequence[Rows]) -> Batch:
    """Pass a batch's rows, and other versions of them, through what lies above the backbone."""
    pooling, at = drawn.pooling.to(step.device), torch.from_numpy(drawn.rows).to(step.device)
    pooled = [(pooling @ seen[at], pooling @ features[at]) for seen, features in versions]
    outputs = [network.classify(*pair) for pair in pooled]
    if drawn.mixing is not None:
        outputs.append(_mixed(network, *pooled[0], drawn.mixing))
    return _batch(step, data, network, drawn, outputs, None)


def other_versions(step: Step, data: TrainingSet, network: Network) -> list[Rows]:
    """Return the rows of AugMix's versions of every crop, drawn once for a stage on rows; else nothing."""
    found = []
    for number in range(aug_mix.VERSIONS if step.options.rejection == "augmix" else 0):
        rng = np.random.default_rng([step.seed, 5, number])
        crops = aug_mix.augment(rng, data.crops, step.without)
        found.append((backbone_rows(network, crops, step.device), forensic_rows(network, crops, step.device)))
    return found


def _backbone(network: Network, images: Tensor) -> Tensor:
    """Return the backbone's features of images, float32 [N, B], for training it."""

    def features(own: Tensor) -> Tensor:
        front = network.front(own)
        with half_precision(own.device):
            found: Tensor = network.backbone(front)
        return found.float()

    return by_share(features, images)


def _mixed(network: Network, seen: Tensor, features: Tensor, mixing: reg_mixup.Mixing) -> NetworkOutput:
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

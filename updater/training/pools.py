"""Items as pools of crops: what is computed once for all epochs, and the batches drawn from it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from detector.features.texture import CropFeatures
from detector.model.backbone import NoBackbone
from detector.model.feature_graph import STORED_PX
from detector.model.network import Network
from detector.model.scores import NetworkOutput
from memory.features import ItemFeatures
from updater.data import stored_rows
from updater.data.stored_rows import StoredRows, joined_rows, rows_of_items
from updater.data.training_data import LabelledCrops
from updater.progress import Steps, no_steps
from updater.training.crop_rows import Crops, Rows, by_rows, rows_at_once, shared_rows

_ITEMS_AT_ONCE = 2048


def rows_at(rows: Rows, at: Tensor) -> Tensor:
    """Return the rows of these numbers, int64 [N], on their device."""
    if isinstance(rows, Tensor):
        return rows[at]
    return torch.from_numpy(rows[at.cpu().numpy()]).to(at.device)


def rows_of(
    rows: Rows, starts: npt.NDArray[np.int64], items: npt.NDArray[np.int64]
) -> tuple[Tensor, npt.NDArray[np.int64]]:
    """Return the rows of some items, float32 [N, .], and where each one's begin, int64 [m + 1]."""
    at, own = rows_of_items(starts, items)
    device = rows.device if isinstance(rows, Tensor) else torch.device("cpu")
    return rows_at(rows, torch.from_numpy(at).to(device)), own


def joined_tensors(parts: Sequence[Rows]) -> Rows:
    """Return rows one after another."""
    full = [part for part in parts if len(part)]
    tensors = [part for part in full if isinstance(part, Tensor)]
    if len(tensors) == len(full) and sum(tensor.nbytes for tensor in tensors) <= stored_rows.MAX_HELD_BYTES:
        return torch.cat([part for part in parts if isinstance(part, Tensor)])
    if not any(one.shape[1] for one in full):
        return torch.zeros(sum(len(one) for one in full), 0, device=tensors[0].device)
    held: StoredRows = joined_rows([p.cpu().numpy() if isinstance(p, Tensor) else p for p in full])
    return held


def forensics_on(device: torch.device, forensics: CropFeatures, side: int) -> Callable[[Tensor], Tensor]:
    """Return what computes forensics on a device, of images float32 [N, 3, S, S] of whole levels, S = side.

    On a CPU that is the graph that detectors run, where it is at hand: it takes half of torch's time. The
    features are the same to within rounding.
    """
    if device.type != "cpu" or side != STORED_PX:
        return forensics
    graph = ItemFeatures(side)

    def features(images: Tensor) -> Tensor:
        crops = images.permute(0, 2, 3, 1).byte().numpy()
        return torch.from_numpy(graph(list(crops[:, None])))

    return features


def forensics_of(network: Network, images: Tensor) -> Tensor:
    """Return the raw forensic features of images, float32 [N, F], without a gradient; F may be 0."""
    if network.forensics is None:
        return images.new_zeros(len(images), 0)
    at_once = rows_at_once(images.shape[2]) if images.device.type == "cpu" else len(images)
    with torch.no_grad():
        return torch.cat([network.forensics(part) for part in torch.split(images, at_once)])


def forensic_rows(network: Network, crops: Crops, device: torch.device, progress: Steps = no_steps) -> Rows:
    """Return the raw forensic features of each crop, float32 [T, F]; F is 0 where there are none.

    Of several processes that train together each computes a share: all of them have to ask for it.
    """
    forensics = network.forensics
    if forensics is None:
        return torch.zeros(len(crops), 0, device=device)
    return shared_rows(forensics_on(device, forensics, crops.shape[1]), crops, device, progress)


def crop_features(
    network: Network, items: LabelledCrops, device: torch.device, progress: Steps = no_steps
) -> Rows:
    """Return the raw forensic features of each crop, float32 [T, F]: the items' own, or computed now."""
    own = items.crop_features
    if own is not None and network.forensics is not None:
        if isinstance(own, StoredRows) and own.nbytes > stored_rows.MAX_HELD_BYTES:
            return own
        return torch.from_numpy(own[:]).to(device)
    return forensic_rows(network, items.crops, device, progress)


def item_features(
    network: Network, items: LabelledCrops, device: torch.device, progress: Steps = no_steps
) -> npt.NDArray[np.float32]:
    """Return each item's raw features, [n, F]: as the memory holds them, or computed now."""
    own, width = items.features, network.feature_mean.shape[0]
    if own is not None and own.shape[1] == width:
        return own
    crops = crop_features(network, items, device, progress)
    parts = [part.cpu().numpy() for part in pooled_in_parts(crops, items.starts)]
    return np.concatenate(parts) if parts else np.zeros((0, width), np.float32)


def with_crop_features(
    items: LabelledCrops, device: torch.device, progress: Steps = no_steps
) -> LabelledCrops:
    """Return the items with every crop's forensic features; those that have them as they are."""
    if items.crop_features is not None:
        return items
    forensics = CropFeatures(items.crops.shape[1]).to(device)
    rows: Rows = torch.zeros(0, forensics.width)
    if len(items):
        rows = by_rows(forensics_on(device, forensics, items.crops.shape[1]), items.crops, device, progress)
    return replace(items, crop_features=rows.cpu().numpy() if isinstance(rows, Tensor) else rows)


def backbone_rows(network: Network, crops: Crops, device: torch.device, progress: Steps = no_steps) -> Rows:
    """Return the backbone's features of each crop in evaluation mode, float32 [T, B].

    Of several processes that train together each computes a share: all of them have to ask for it.
    """
    network.eval()
    if isinstance(network.backbone, NoBackbone):
        return torch.zeros(len(crops), 0, device=device)
    return shared_rows(lambda images: network.backbone(network.front(images)), crops, device, progress)


def pool_rows(rows: Tensor, starts: npt.NDArray[np.int64]) -> Tensor:
    """rows: float32 [T, B] → the mean of each item's rows, float32 [n, B]."""
    counts = torch.from_numpy(np.diff(starts)).to(rows.device)
    owner = torch.repeat_interleave(torch.arange(len(counts), device=rows.device), counts)
    sums = torch.zeros(len(counts), rows.shape[1], device=rows.device).index_add_(0, owner, rows)
    return sums / counts[:, None]


def pooled_in_parts(rows: Rows, starts: npt.NDArray[np.int64]) -> Iterator[Tensor]:
    """Yield the mean of each item's rows, float32 [., B], of some thousands of items at a time."""
    for first in range(0, len(starts) - 1, _ITEMS_AT_ONCE):
        some = starts[first : first + _ITEMS_AT_ONCE + 1]
        own = rows[some[0] : some[-1]]
        yield pool_rows(own if isinstance(own, Tensor) else torch.from_numpy(own), some - some[0])


def classify_items(
    network: Network, seen: Rows, features: Rows, starts: npt.NDArray[np.int64]
) -> NetworkOutput:
    """Return the output for each whole item in evaluation mode, from rows [T, B] and [T, F]."""
    parts = list(classify_in_parts(network, seen, features, starts))
    return NetworkOutput(*(torch.cat(one) if len(one) > 1 else one[0] for one in zip(*parts, strict=True)))


def classify_in_parts(
    network: Network, seen: Rows, features: Rows, starts: npt.NDArray[np.int64]
) -> Iterator[NetworkOutput]:
    """Yield the output for some thousands of items at a time, at least once."""
    network.eval()
    device = next(network.parameters()).device
    if len(starts) < 2:
        with torch.no_grad():
            yield network.classify(*(torch.zeros(0, one.shape[1], device=device) for one in (seen, features)))
    for pair in zip(pooled_in_parts(seen, starts), pooled_in_parts(features, starts), strict=True):
        with torch.no_grad():
            yield network.classify(*(one.to(device) for one in pair))


def draw_crops(
    rng: np.random.Generator, items: npt.NDArray[np.int64], starts: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Draw one crop of each item, and return their rows, int64 [M]."""
    counts = np.diff(starts)[items]
    # By random keys: those of crops that an item does not have come last.
    keys = rng.random((len(items), counts.max(initial=1)))
    keys[np.arange(keys.shape[1]) >= counts[:, None]] = np.inf
    return np.asarray(starts[items] + keys.argmin(1))

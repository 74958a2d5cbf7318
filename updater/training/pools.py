"""Items as pools of crops: what is computed once for all epochs, and the batches drawn from it."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from detector.backbone import NoBackbone
from detector.forensics import ForensicFeatures
from detector.network import Network, NetworkOutput
from updater.training_data import LabelledCrops

_ROWS_AT_ONCE = 4
"""of crops of 128 px or more on a CPU"""
_PIXELS_AT_ONCE = 4 * 128 * 128
"""smaller crops are taken so many at once, since a few of them cost more in calls than in arithmetic"""


def as_images(crops: npt.NDArray[np.uint8] | npt.NDArray[np.float32], device: torch.device) -> Tensor:
    """Levels 0..255 [N, S, S, 3] → float32 [N, 3, S, S] on the device, channel beside channel as they come.

    Nothing is moved, and convolutions go up to one and a half times as fast so.
    """
    return torch.from_numpy(crops).to(device).float().permute(0, 3, 1, 2)


def forensics_of(network: Network, images: Tensor) -> Tensor:
    """Return the raw forensic features of images, float32 [N, F], without a gradient; F may be 0."""
    if network.forensics is None:
        return images.new_zeros(len(images), 0)
    at_once = _rows_at_once(images.shape[2]) if images.device.type == "cpu" else len(images)
    with torch.no_grad():
        return torch.cat([network.forensics(part) for part in torch.split(images, at_once)])


def forensic_rows(
    network: Network,
    crops: npt.NDArray[np.uint8],
    device: torch.device,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Tensor:
    """Return the raw forensic features of each crop, float32 [T, F]; F is 0 where there are none."""
    forensics = network.forensics
    if forensics is None:
        return torch.zeros(len(crops), 0, device=device)
    return by_rows(lambda images: forensics(images), crops, device, progress)


def crop_features(
    network: Network,
    items: LabelledCrops,
    device: torch.device,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Tensor:
    """Return the raw forensic features of each crop, float32 [T, F]: the items' own, or computed now."""
    if items.crop_features is not None and network.forensics is not None:
        return torch.from_numpy(items.crop_features).to(device)
    return forensic_rows(network, items.crops, device, progress)


def with_crop_features(
    items: LabelledCrops,
    device: torch.device,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> LabelledCrops:
    """Return the items with every crop's forensic features; those that have them as they are."""
    if items.crop_features is not None:
        return items
    forensics = ForensicFeatures(items.crops.shape[1]).to(device)
    rows = torch.zeros(0, forensics.width)
    if len(items):
        rows = by_rows(forensics, items.crops, device, progress)
    return replace(items, crop_features=rows.cpu().numpy())


def backbone_rows(
    network: Network,
    crops: npt.NDArray[np.uint8],
    device: torch.device,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Tensor:
    """Return the backbone's features of each crop in evaluation mode, float32 [T, B]."""
    network.eval()
    if isinstance(network.backbone, NoBackbone):
        return torch.zeros(len(crops), 0, device=device)
    return by_rows(lambda images: network.backbone(network.front(images)), crops, device, progress)


def pooled(rows: Tensor, starts: npt.NDArray[np.int64]) -> Tensor:
    """rows: float32 [T, B] → the mean of each item's rows, float32 [n, B]."""
    counts = torch.from_numpy(np.diff(starts)).to(rows.device)
    owner = torch.repeat_interleave(torch.arange(len(counts), device=rows.device), counts)
    sums = torch.zeros(len(counts), rows.shape[1], device=rows.device).index_add_(0, owner, rows)
    return sums / counts[:, None]


def classify_items(
    network: Network, seen: Tensor, features: Tensor, starts: npt.NDArray[np.int64]
) -> NetworkOutput:
    """Return the output for each whole item in evaluation mode, from rows [T, B] and [T, F]."""
    network.eval()
    with torch.no_grad():
        return network.classify(pooled(seen, starts), pooled(features, starts))


def draw_crops(
    rng: np.random.Generator, items: npt.NDArray[np.int64], starts: npt.NDArray[np.int64], at_most: int
) -> tuple[npt.NDArray[np.int64], Tensor]:
    """Draw up to `at_most` crops of each item.

    Returns their rows, int64 [N], and the pooling that takes them back to the items, float32 [M, N].
    """
    counts = np.diff(starts)[items]
    taken = np.minimum(counts, at_most)
    # The crops of an item in a random order: by random keys, and those that it does not have come last.
    keys = rng.random((len(items), counts.max(initial=0)))
    keys[np.arange(keys.shape[1]) >= counts[:, None]] = np.inf
    order = keys.argsort(1)[:, :at_most]
    rows = (starts[items][:, None] + order)[np.arange(order.shape[1]) < taken[:, None]]
    owners = np.repeat(np.arange(len(items)), taken)
    pooling = np.zeros((len(items), len(rows)), np.float32)
    pooling[owners, np.arange(len(rows))] = 1 / taken[owners]
    return rows, torch.from_numpy(pooling)


def by_rows(
    function: Callable[[Tensor], Tensor],
    crops: npt.NDArray[np.uint8],
    device: torch.device,
    progress: Callable[[int, int], None],
) -> Tensor:
    """Apply a function to a few crops at a time; on a CPU, several such batches beside one another.

    Operations this small lose more by being shared out over threads than they gain: by a factor of
    three on two cores.
    """
    threads, at_once = torch.get_num_threads(), _rows_at_once(crops.shape[1])

    def apply(start: int) -> Tensor:
        with torch.no_grad():
            return function(as_images(crops[start : start + at_once], device))

    parts = []
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(
            1 if device.type == "cuda" else threads, initializer=lambda: torch.set_num_threads(1)
        ) as pool:
            for part in pool.map(apply, range(0, len(crops), at_once)):
                parts.append(part)
                progress(min(len(parts) * at_once, len(crops)), len(crops))
    finally:
        torch.set_num_threads(threads)
    return torch.cat(parts)


def _rows_at_once(side: int) -> int:
    return max(_ROWS_AT_ONCE, _PIXELS_AT_ONCE // side**2)

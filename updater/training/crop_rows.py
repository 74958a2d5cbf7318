"""A row for each crop, computed once for all epochs: how rows are made, kept, pooled to items and drawn.

As many crops at a time as a GPU holds; by several processes a share each. Rows are in memory, or on disk
where they take too much.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

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
from updater.data.stored_rows import StoredRows, chosen_rows, collect_rows
from updater.data.training_data import LabelledCrops
from updater.progress import Steps, no_steps
from updater.training import processes
from updater.training.fit import one_thread

S = TypeVar("S")
T = TypeVar("T")
Crops = npt.NDArray[np.uint8] | StoredRows
"""uint8 [T, S, S, 3]"""
Rows = npt.NDArray[np.float32] | StoredRows
"""float32 [T, .], a row a crop"""

_ROWS_AT_ONCE = 4
"""of crops of 128 px or more on a CPU"""
_PIXELS_AT_ONCE = 4 * 128 * 128
"""smaller crops are taken so many at once, since a few of them cost more in calls than in arithmetic"""
_ROWS_AT_FIRST, _MOST_ROWS = 64, 4096
"""on a GPU"""
_SENT_AT_ONCE = 4096
"""rows, from one process to the others"""
_ITEMS_AT_ONCE = 2048


class DeviceMemoryError(ValueError):
    """A device's memory is too small for a computation. Fatal until that gets smaller."""


def as_images(crops: npt.NDArray[np.uint8] | npt.NDArray[np.float32], device: torch.device) -> Tensor:
    """Levels 0..255 [N, S, S, 3] → float32 [N, 3, S, S] on the device, channel beside channel as they come.

    Nothing is moved, and convolutions go up to one and a half times as fast so.
    """
    return torch.from_numpy(crops).to(device).float().permute(0, 3, 1, 2)


def by_rows(
    function: Callable[[Tensor], Tensor], crops: Crops, device: torch.device, progress: Steps = no_steps
) -> Rows:
    """Apply a function to a few of at least one crop at a time; on a CPU, several batches beside one another.

    Operations this small lose more by being shared out over threads than they gain: by a factor of
    three on two cores.
    """
    if device.type == "cuda":
        return collect_rows(part.cpu().numpy() for part in fitting(function, crops, device, progress))
    threads, at_once = torch.get_num_threads(), rows_at_once(crops.shape[1])

    def apply(start: int) -> npt.NDArray[np.float32]:
        with torch.no_grad():
            return function(as_images(crops[start : start + at_once], device)).numpy()

    def parts() -> Iterator[npt.NDArray[np.float32]]:
        done = 0
        with ThreadPoolExecutor(threads, initializer=lambda: torch.set_num_threads(1)) as pool:
            for part in in_turn(pool, apply, range(0, len(crops), at_once), 4 * threads):
                done += len(part)
                progress(done, len(crops))
                yield part

    with one_thread(device):
        return collect_rows(parts())


def shared_rows(
    function: Callable[[Tensor], Tensor], crops: Crops, device: torch.device, progress: Steps = no_steps
) -> Rows:
    """Do as `by_rows` does, each of the processes that train together for its share of the crops."""
    at_once, count, number = rows_at_once(crops.shape[1]), processes.count(), processes.number()
    parts = -(-len(crops) // at_once)
    if count == 1 or parts < count:
        return by_rows(function, crops, device, progress)
    # In whole parts, so that what a row is computed with, and with it its rounding, is as in one process.
    ends = [min(len(crops), parts * rank // count * at_once) for rank in range(count + 1)]
    few = chosen_rows(crops, slice(ends[number], ends[number + 1]))
    own = by_rows(function, few, device, lambda done, _: progress(done, len(crops)))

    def of_all() -> Iterator[npt.NDArray[np.float32]]:
        for rank in range(count):
            for first in range(0, ends[rank + 1] - ends[rank], _SENT_AT_ONCE):
                part = own[first : first + _SENT_AT_ONCE] if rank == number else None
                yield processes.broadcast(part, rank)

    whole = collect_rows(of_all())
    progress(len(crops), len(crops))
    return whole


def fitting(
    function: Callable[[Tensor], Tensor],
    crops: Crops,
    device: torch.device,
    progress: Callable[[int, int], None],
) -> Iterator[Tensor]:
    """Yield a function's rows for more crops at a time each time, as long as the device's memory holds them.

    Once it is full, for half as many. Raises DeviceMemoryError where it does not hold a single one.
    """
    at_once, grows, first = _ROWS_AT_FIRST, True, 0
    while first < len(crops):
        try:
            with torch.no_grad():
                part = function(as_images(crops[first : first + at_once], device))
        except torch.OutOfMemoryError as error:
            if at_once == 1:
                raise DeviceMemoryError(
                    f"{device} has too little memory for one crop: end what else runs on it, or choose a"
                    " smaller backbone or crop"
                ) from error
            at_once, grows = at_once // 2, False
            torch.cuda.empty_cache()
            continue
        first += len(part)
        progress(first, len(crops))
        yield part
        if grows:
            at_once = min(2 * at_once, _MOST_ROWS)


def in_turn(pool: ThreadPoolExecutor, do: Callable[[S], T], items: Iterable[S], most: int) -> Iterator[T]:
    """Yield do(item) for each item in order, as `pool.map` does, with at most so many under way.

    `pool.map` would keep what comes in faster than it is taken, all of it in memory.
    """
    waiting: deque[Future[T]] = deque()
    for item in items:
        waiting.append(pool.submit(do, item))
        if len(waiting) > most:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def rows_at_once(side: int) -> int:
    """Return how many crops of this side are best looked at together on a CPU."""
    return max(_ROWS_AT_ONCE, _PIXELS_AT_ONCE // side**2)


def rows_at(rows: Rows, numbers: npt.NDArray[np.int64], device: torch.device) -> Tensor:
    """Return the rows of these numbers, int64 [N], on a device."""
    return torch.from_numpy(rows[numbers]).to(device)


def forensics_on(device: torch.device, forensics: CropFeatures, side: int) -> Callable[[Tensor], Tensor]:
    """Return the module of forensics on a device, of images float32 [N, 3, S, S] of whole levels, S = side.

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
        return np.zeros((len(crops), 0), np.float32)
    return shared_rows(forensics_on(device, forensics, crops.shape[1]), crops, device, progress)


def crop_features(
    network: Network, items: LabelledCrops, device: torch.device, progress: Steps = no_steps
) -> Rows:
    """Return the raw forensic features of each crop, float32 [T, F]: the items' own, or computed now."""
    own = items.crop_features
    if own is not None and network.forensics is not None:
        return own if own.nbytes > stored_rows.MAX_HELD_BYTES else own[:]
    return forensic_rows(network, items.crops, device, progress)


def item_features(
    network: Network, items: LabelledCrops, device: torch.device, progress: Steps = no_steps
) -> npt.NDArray[np.float32]:
    """Return each item's raw features, [n, F]: as the memory holds them, or computed now."""
    own, width = items.features, network.feature_mean.shape[0]
    if own is not None and own.shape[1] == width:
        return own
    crops = crop_features(network, items, device, progress)
    parts = [part.numpy() for part in pooled_in_parts(crops, items.starts)]
    return np.concatenate(parts) if parts else np.zeros((0, width), np.float32)


def with_crop_features(
    items: LabelledCrops, device: torch.device, progress: Steps = no_steps
) -> LabelledCrops:
    """Return the items with every crop's forensic features; those that have them as they are."""
    if items.crop_features is not None:
        return items
    forensics = CropFeatures(items.crops.shape[1]).to(device)
    rows: Rows = np.zeros((0, forensics.width), np.float32)
    if len(items):
        rows = by_rows(forensics_on(device, forensics, items.crops.shape[1]), items.crops, device, progress)
    return replace(items, crop_features=rows)


def backbone_rows(network: Network, crops: Crops, device: torch.device, progress: Steps = no_steps) -> Rows:
    """Return the backbone's features of each crop in evaluation mode, float32 [T, B].

    Of several processes that train together each computes a share: all of them have to ask for it.
    """
    network.eval()
    if isinstance(network.backbone, NoBackbone):
        return np.zeros((len(crops), 0), np.float32)
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
        yield pool_rows(torch.from_numpy(rows[some[0] : some[-1]]), some - some[0])


def classify_items(
    network: Network, seen: Rows, features: Rows, starts: npt.NDArray[np.int64]
) -> NetworkOutput:
    """Return the output for each whole item in evaluation mode, from rows [T, B] and [T, F]."""
    parts = list(classify_in_parts(network, seen, features, starts))
    return NetworkOutput(*(torch.cat(of) if len(of) > 1 else of[0] for of in zip(*parts, strict=True)))


def classify_in_parts(
    network: Network, seen: Rows, features: Rows, starts: npt.NDArray[np.int64]
) -> Iterator[NetworkOutput]:
    """Yield the output for some thousands of items at a time, at least once."""
    network.eval()
    device = next(network.parameters()).device
    if len(starts) < 2:
        with torch.no_grad():
            yield network.classify(*(torch.zeros(0, x.shape[1], device=device) for x in (seen, features)))
    for pair in zip(pooled_in_parts(seen, starts), pooled_in_parts(features, starts), strict=True):
        with torch.no_grad():
            yield network.classify(*(tensor.to(device) for tensor in pair))


def draw_crops(
    rng: np.random.Generator, items: npt.NDArray[np.int64], starts: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Draw one crop of each item, and return their rows, int64 [M]."""
    counts = np.diff(starts)[items]
    # By random keys: those of crops that an item does not have come last.
    keys = rng.random((len(items), counts.max(initial=1)))
    keys[np.arange(keys.shape[1]) >= counts[:, None]] = np.inf
    return np.asarray(starts[items] + keys.argmin(1))

"""A row for each crop: some crops at a time, as many as a GPU holds, by several processes a share each."""

import itertools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from updater.data import stored_rows
from updater.data.stored_rows import StoredRows, collect_rows
from updater.training import processes
from updater.training.precision import one_thread

T = TypeVar("T")
Crops = npt.NDArray[np.uint8] | StoredRows
"""uint8 [T, S, S, 3]"""

_ROWS_AT_ONCE = 4
"""of crops of 128 px or more on a CPU"""
_PIXELS_AT_ONCE = 4 * 128 * 128
"""smaller crops are taken so many at once, since a few of them cost more in calls than in arithmetic"""


_ROWS_AT_FIRST, _MOST_ROWS = 64, 4096
"""on a GPU"""
_SENT_AT_ONCE = 4096
"""rows, from one process to the others"""


Rows = Tensor | StoredRows
"""float32 [T, .], a row a crop: on the device, or on disk where they are too many"""


class DeviceMemoryError(ValueError):
    """A device's memory is too small for what it is to compute. Fatal until less is asked of it."""


def as_images(crops: npt.NDArray[np.uint8] | npt.NDArray[np.float32], device: torch.device) -> Tensor:
    """Levels 0..255 [N, S, S, 3] → float32 [N, 3, S, S] on the device, channel beside channel as they come.

    Nothing is moved, and convolutions go up to one and a half times as fast so.
    """
    return torch.from_numpy(crops).to(device).float().permute(0, 3, 1, 2)


def by_rows(
    function: Callable[[Tensor], Tensor],
    crops: Crops,
    device: torch.device,
    progress: Callable[[int, int], None],
) -> Rows:
    """Apply a function to a few crops at a time; on a CPU, several such batches beside one another.

    Operations this small lose more by being shared out over threads than they gain: by a factor of
    three on two cores. The result is on the device, or on disk where it would take too much memory.
    """
    threads, at_once = torch.get_num_threads(), rows_at_once(crops.shape[1])

    def apply(start: int) -> Tensor:
        with torch.no_grad():
            return function(as_images(crops[start : start + at_once], device))

    def parts() -> Iterator[Tensor]:
        done = 0
        with ThreadPoolExecutor(threads, initializer=lambda: torch.set_num_threads(1)) as pool:
            for part in in_turn(pool, apply, range(0, len(crops), at_once), 4 * threads):
                done += len(part)
                progress(done, len(crops))
                yield part

    if device.type == "cuda":
        return _put_together(fitting(function, crops, device, progress), len(crops))
    with one_thread(device):
        return _put_together(parts(), len(crops))


def shared_rows(
    function: Callable[[Tensor], Tensor],
    crops: Crops,
    device: torch.device,
    progress: Callable[[int, int], None],
) -> Rows:
    """Do as `by_rows` does, each of the processes that train together for its share of the crops."""
    at_once, count = rows_at_once(crops.shape[1]), processes.count()
    parts = -(-len(crops) // at_once)
    if count == 1 or parts < count:
        return by_rows(function, crops, device, progress)
    # In whole parts, so that what a row is computed with, and with it its rounding, is as in one process.
    ends = [min(len(crops), parts * rank // count * at_once) for rank in range(count + 1)]
    first, end = ends[processes.number()], ends[processes.number() + 1]
    few = crops.take(slice(first, end)) if isinstance(crops, StoredRows) else crops[first:end]
    rows = by_rows(function, few, device, lambda done, _: progress(done, len(crops)))

    def own(some: slice) -> Tensor:
        found = rows[some]
        return found if isinstance(found, Tensor) else torch.from_numpy(found).to(device)

    whole = _put_together(processes.from_all(own, ends, _SENT_AT_ONCE), len(crops))
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


def _put_together(parts: Iterator[Tensor], count: int) -> Rows:
    first = next(parts)
    nbytes = first[0].nbytes * count
    if nbytes <= stored_rows.MAX_HELD_BYTES:
        return torch.cat([first, *parts])
    held = collect_rows(part.cpu().numpy() for part in itertools.chain([first], parts))
    assert isinstance(held, StoredRows)
    return held


def in_turn(
    pool: ThreadPoolExecutor, do: Callable[[int], T], numbers: Iterable[int], most: int
) -> Iterator[T]:
    """Yield do(number) for each number in order, as `pool.map` does, with at most so many under way.

    `pool.map` would keep what comes in faster than it is taken, all of it in memory.
    """
    waiting: deque[Future[T]] = deque()
    for number in numbers:
        waiting.append(pool.submit(do, number))
        if len(waiting) > most:
            yield waiting.popleft().result()
    while waiting:
        yield waiting.popleft().result()


def rows_at_once(side: int) -> int:
    """Return how many crops of this side are best looked at together on a CPU."""
    return max(_ROWS_AT_ONCE, _PIXELS_AT_ONCE // side**2)

"""From decoded items to the arrays that a model takes. Pure."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.release.contract import Contract, MediaInput
from ingest.records import Decoded, Region

_HEADER_BYTES = 256
"""What safetensors writes of one array before them all, at the most."""


def request_for(
    items: Sequence[Decoded], contract: Contract, apart: Sequence[tuple[int, Region]] = ()
) -> dict[str, NDArray[Any]]:
    """Return what the contract takes, of n items.

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
    """Bound from above what n items take as the body of a request, bytes, with a video's crops apart."""
    rows = sum(1 + len(item.regions) + (len(item.crops) if item.kind == "video" else 0) for item in items)
    total = _HEADER_BYTES * len(contract.inputs)
    for view in contract.views:
        pixels = [item.view(view.name) for item in items]
        total += sum(one.nbytes * np.dtype(view.dtype).itemsize for one in pixels)
        total += rows * sum(len(one) for one in pixels) * np.dtype(np.float32).itemsize
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

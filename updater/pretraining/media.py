"""A folder of unlabelled media as crops, decoded in the sandbox that the stream's media go through."""

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ingest.records import CropPlan, Decoded, MediaPlan
from ingest.sandbox.decode import DecodeError
from ingest.sandbox.sandbox import Sandbox
from ingest.settings import IngestSettings

MOST_CROPS = 20_000
"""that are held in memory: 1 GB at 128 px"""
_MOST_PENDING = 16


class PretrainingError(Exception):
    """Pre-training cannot begin or go on. Fatal. One line: why, and what to do."""


@dataclass(frozen=True)
class UnlabelledMedia:
    """n pictures and clips of one or more sources, and their crops."""

    crops: NDArray[np.uint8]
    """[T, S, S, 3], RGB"""
    owners: NDArray[np.int64]
    """[T], the file that each crop is of, 0..n-1"""
    sources: tuple[str, ...]
    """[n], the folder right below the top that a file lies in; "" for the top itself"""
    unreadable: tuple[str, ...]
    """a line for each file that gave no picture: which, and why"""
    over: int
    """files that were not read, since enough was"""


def read_media(
    folder: Path,
    plan: CropPlan,
    seed: int,
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
    *,
    most_crops: int = MOST_CROPS,
) -> UnlabelledMedia:
    """Read the files below a folder, in an order drawn by the seed, until there are enough crops.

    Hidden files are none. Raises PretrainingError where the folder is none or no file of it gives a picture,
    and SandboxUnavailableError.
    """
    files = _files(folder)
    order = [files[i] for i in np.random.default_rng([seed, 1]).permutation(len(files))]
    limits, crops, sources, unreadable, taken = IngestSettings(), [], [], [], 0
    pending: deque[tuple[Path, Future[Decoded]]] = deque()
    left = deque(order)
    with Sandbox(limits) as sandbox:
        while (left or pending) and taken < most_crops:
            while left and len(pending) < _MOST_PENDING:
                path = left.popleft()
                pending.append((path, sandbox.submit(_reading(path, limits), MediaPlan(crops=plan))))
            path, future = pending.popleft()
            name = path.relative_to(folder)
            try:
                cut = future.result().crops
            except DecodeError as error:
                unreadable.append(f"{name}: {error.reason}: {error}")
            except OSError as error:
                unreadable.append(f"{name}: cannot be read ({error.strerror})")
            else:
                crops.append(cut)
                sources.append(name.parts[0] if len(name.parts) > 1 else "")
                taken += len(cut)
            progress("read media", len(files) - len(left) - len(pending), len(files))
    if not crops:
        raise PretrainingError(
            f"none of the {len(files)} files below {folder} gives a picture"
            f" (first: {unreadable[0]}): name a folder of images or videos"
        )
    owners = np.repeat(np.arange(len(crops)), [len(cut) for cut in crops])
    return UnlabelledMedia(
        np.concatenate(crops), owners, tuple(sources), tuple(unreadable), len(left) + len(pending)
    )


def _reading(path: Path, limits: IngestSettings) -> Callable[[], bytes]:
    def read() -> bytes:
        with path.open("rb") as opened:
            # One byte too many makes the sandbox refuse it, with its reason.
            return opened.read(limits.max_fetched_bytes + 1)

    return read


def _files(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise PretrainingError(f"{folder} is no folder: name one that holds images or videos")
    found = [
        path
        for path in sorted(folder.rglob("*"))
        if not path.is_dir() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]
    if not found:
        raise PretrainingError(f"{folder} holds no files: name a folder of images or videos")
    return found

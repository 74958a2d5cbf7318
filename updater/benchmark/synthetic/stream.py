"""Media of the demonstration by number: the same seed, split, family and index always give the same bytes."""

import hashlib
import os
import signal
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from itertools import product, starmap
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import NamedTuple, TypeVar

import numpy as np

from updater.benchmark.synthetic import camera
from updater.benchmark.synthetic.camera import CAMERAS, photograph
from updater.benchmark.synthetic.families import FAMILIES, ForgeryFamily
from updater.benchmark.synthetic.scenes import PHOTOGRAPHS, piece, render
from updater.filters import Picture

REAL = "real"
SPLITS: tuple[str, ...] = tuple(PHOTOGRAPHS)
# The few photographs for training stand for all others, so they are seen more often than photographs arrive.
PHOTOGRAPH_SHARE = {"train": 0.06, "stream": 0.03, "after": 0.03}
SIDES_PX = (240, 256, 272)
FROZEN = "ef3961d87d6ccac71f7ef25adfdf2c48bc72bbdee2d37116449c5af37ca807f4"
"""What `digest(seed=0, count=1)` gave when the stream was frozen, before any gate was tuned on it.

A family, a camera or a share may change only together with this, and with all figures measured on it.
"""


@dataclass(frozen=True)
class MediaSample:
    """One file. Samples of one `group` show the same photograph or scene: no split may part them."""

    data: bytes
    family: str
    group: str
    name: str


Sample = TypeVar("Sample")


class Scene(NamedTuple):
    """A medium's picture, before it is forged."""

    group: str
    camera: int | None
    """the number of the camera in CAMERAS; None of a photograph"""
    picture: Picture


def make(seed: int, split: str, family: str, index: int) -> MediaSample:
    """The `index`-th medium of a family ("real" or a name in FAMILIES) of one split, always the same bytes.

    Bytes are equal on machines with the same pinned packages and vector instructions; elsewhere a pixel may
    round differently. Raises KeyError for an unknown family or split.
    """
    forger, rng = drawn_by(seed, split, family, index)
    height, width = (int(side) for side in rng.choice(SIDES_PX, 2))
    base = source(rng, split, height, width, photographs=PHOTOGRAPH_SHARE[split])
    picture = base.picture if forger is None else forger.forge(rng, base.picture)
    data, extension = camera.write(rng, base.picture, picture)
    return MediaSample(data, family, base.group, name_of(data, extension))


def drawn_by(
    seed: int, split: str, family: str, index: int, kind: str = ""
) -> tuple[ForgeryFamily | None, np.random.Generator]:
    """Return the family, None of a real medium, and the medium's generator. Raises KeyError as `make` does.

    kind: what is told apart from the media of the same number, as in "clip-".
    """
    if split not in SPLITS:
        raise KeyError(split)
    stream = zlib.crc32(f"{kind}{family}".encode())
    rng = np.random.default_rng([seed, SPLITS.index(split), stream, index])
    return None if family == REAL else FAMILIES[family], rng


def name_of(data: bytes, extension: str) -> str:
    """Return a file's name, by its content: it must not tell the family to whoever reads the stream."""
    return f"{hashlib.sha256(data).hexdigest()[:20]}.{extension}"


def source(rng: np.random.Generator, split: str, height: int, width: int, *, photographs: float) -> Scene:
    """A photograph of the split, with this probability, else a scene that no other medium shows."""
    if rng.random() < photographs:
        group, picture = piece(rng, split, height, width)
        return Scene(group, None, picture)
    scene = rng.bytes(8).hex()
    camera = int(rng.integers(len(CAMERAS)))
    return Scene(f"scene-{scene}", camera, photograph(rng, render(rng, height, width), CAMERAS[camera]))


def make_many(
    seed: int,
    split: str,
    wanted: Sequence[tuple[str, int]],
    *,
    processes: int,
    progress: Callable[[int, int], None] = lambda made, total: None,
) -> Iterator[MediaSample]:
    """The samples of `wanted`, (family, index) each, made as `made_in_parallel` makes them."""
    jobs = [(seed, split, family, index) for family, index in wanted]
    return made_in_parallel(make, jobs, processes=processes, progress=progress)


def made_in_parallel(
    make: Callable[..., Sample],
    jobs: Sequence[tuple[object, ...]],
    *,
    processes: int,
    at_once: int = 16,
    progress: Callable[[int, int], None] = lambda made, total: None,
) -> Iterator[Sample]:
    """Yield make(*job) of each job, in that order, made in parallel processes.

    at_once: jobs that a process is given together. `progress` is called with (made, of how many). Processes
    are forked from one without threads: a script that calls this needs a main guard.
    """
    here = processes == 1 or not jobs
    with nullcontext(starmap(make, jobs)) if here else making(make, jobs, processes, at_once) as made:
        for number, sample in enumerate(made, start=1):
            yield sample
            progress(number, len(jobs))


@contextmanager
def making(
    make: Callable[..., Sample], jobs: Sequence[tuple[object, ...]], processes: int, at_once: int
) -> Iterator[Iterator[Sample]]:
    """Begin to make the samples of some jobs, at least one, as `made_in_parallel` does; until left."""
    context = get_context("forkserver")
    context.set_forkserver_preload([__name__])  # to import it takes each process two seconds
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=end_with_parent)
    try:
        yield pool.map(make, *zip(*jobs, strict=True), chunksize=at_once)
    finally:
        pool.shutdown(cancel_futures=True)  # who wants no more waits for none


def end_with_parent() -> None:
    """Let this process of a pool end with the one that it works for, however that ends, and not before."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_await_parent, daemon=True).start()


def _await_parent() -> None:
    parent = parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def write_folders(
    directory: Path,
    seed: int,
    split: str,
    counts: dict[str, int],
    *,
    processes: int,
    progress: Callable[[int, int], None] = lambda made, total: None,
) -> int:
    """Write `counts[family]` samples of each family as DIRECTORY/FAMILY/GROUP/NAME; return how many.

    `forgewatch import` reads such folders.
    """
    wanted = [(family, index) for family, count in counts.items() for index in range(count)]
    for sample in make_many(seed, split, wanted, processes=processes, progress=progress):
        write_file(directory, sample)
    return len(wanted)


def write_file(directory: Path, sample: MediaSample) -> None:
    """Write a sample as DIRECTORY/FAMILY/GROUP/NAME."""
    path = directory / sample.family / sample.group / sample.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(sample.data)


def digest(seed: int = 0, count: int = 4) -> str:
    """SHA-256 over the first `count` samples of every family in every split: changes when the stream does."""
    total = hashlib.sha256()
    for split, family, index in product(SPLITS, (REAL, *FAMILIES), range(count)):
        total.update(hashlib.sha256(make(seed, split, family, index).data).digest())
    return total.hexdigest()

"""Pictures of the synthetic stream that are forged in part, each beside the truth of where.

A family that forges a part by its own doing does so; any other is kept behind a random mask. The file is
made by the stream's own last step, and a number gives the same bytes always, as in `stream`.
"""

import hashlib
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np
from numpy.typing import NDArray

from updater.benchmark.synthetic import camera
from updater.benchmark.synthetic.families import FAMILIES, Family
from updater.benchmark.synthetic.stream import REAL, SPLITS, source
from updater.filters import Picture
from updater.outliers.local_forgeries import Forged, kept_behind, random_mask

SIDE_PX = 256
PHOTOGRAPH_SHARE = 0.25
REAL_SHARE = 0.3


@dataclass(frozen=True)
class LocalSample:
    """One file, with its truth. Samples of one `group` show the same photograph or scene."""

    data: bytes
    family: str
    group: str
    name: str
    camera: int | None
    """the number of the camera in CAMERAS; None of a photograph"""
    mask: NDArray[np.uint8]
    """[H, W], 0..255: how much of each pixel is forged; 0 throughout of a real picture"""


def forge_in_part(family: Family, rng: np.random.Generator, picture: Picture) -> Forged:
    """Forge a part of a picture: the family's own part, or what lies behind a random mask."""
    forged = family.forge_where(rng, picture)
    if family.local:
        return forged
    mask = random_mask(rng, *picture.shape[:2])
    return Forged(kept_behind(mask, picture, forged.picture), mask)


def make_local(
    seed: int, split: str, family: str, index: int, photographs: float = PHOTOGRAPH_SHARE
) -> LocalSample:
    """The `index`-th picture of a family ("real" or a name in FAMILIES) of one split, always the same bytes.

    photographs: how many in one are pieces of photographs, 0..1. Raises KeyError for an unknown family or
    split.
    """
    forge = None if family == REAL else FAMILIES[family]
    if split not in SPLITS:
        raise KeyError(split)
    stream = zlib.crc32(f"local-{family}".encode())
    rng = np.random.default_rng([seed, SPLITS.index(split), stream, index])
    shown = source(rng, split, SIDE_PX, SIDE_PX, photographs=photographs)
    picture, mask = shown.picture, np.zeros((SIDE_PX, SIDE_PX), np.uint8)
    if forge is not None:
        forged = forge_in_part(forge, rng, picture)
        picture, mask = forged.picture, np.rint(255 * forged.mask[..., 0]).astype(np.uint8)
    data, extension = camera.write(rng, shown.picture, picture)
    name = f"{hashlib.sha256(data).hexdigest()[:20]}.{extension}"
    return LocalSample(data, family, shown.group, name, shown.camera, mask)


def numbers_of(count: int, families: Sequence[str] = tuple(FAMILIES)) -> list[tuple[str, int]]:
    """Share `count` pictures out, (family, index) each: three in ten are real, the others of all families."""
    reals = round(REAL_SHARE * count)
    forged = [(families[number % len(families)], number // len(families)) for number in range(count - reals)]
    return [(REAL, index) for index in range(reals)] + forged


def make_locals(
    seed: int,
    split: str,
    wanted: Sequence[tuple[str, int]],
    *,
    processes: int,
    photographs: float = PHOTOGRAPH_SHARE,
    progress: Callable[[int, int], None] = lambda made, total: None,
) -> Iterator[LocalSample]:
    """The samples of `wanted`, (family, index) each, in that order, made in parallel processes.

    Processes are spawned: a script that calls this needs a main guard.
    """
    jobs = [(seed, split, family, index, photographs) for family, index in wanted]
    if processes <= 1:
        for made, job in enumerate(jobs, start=1):
            yield _make_job(job)
            progress(made, len(jobs))
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        for made, sample in enumerate(pool.map(_make_job, jobs, chunksize=16), start=1):
            yield sample
            progress(made, len(jobs))


def _make_job(job: tuple[int, str, str, int, float]) -> LocalSample:
    return make_local(*job)

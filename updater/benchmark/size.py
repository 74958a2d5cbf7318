"""What memory a number of images takes: one update over generated ones, from crops to an evaluation.

The images are noise of small pictures, of two classes that differ in their grain; each is one crop. How well
they are told apart says nothing. Of many only some thousands differ, whose forensic features are computed.
"""

import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ingest.records import CropPlan
from memory.herding import herd
from updater.benchmark.continual.items import with_features
from updater.benchmark.continual.scoring import calibrated, herding_features
from updater.benchmark.continual.setup import Setup
from updater.benchmark.data.cache import Piece, fetch, identity
from updater.benchmark.data.crops import join
from updater.benchmark.data.tasks import Stream, Task
from updater.benchmark.learners.methods import LEARNERS
from updater.data.training_data import LabelledCrops
from updater.progress import Progress
from updater.training.step import Recipe, Step

CROP_PX = 32
CLASSES = ("size/real", "size/fake")
RECIPE = Recipe(20, 1e-3, 100, 2e-3, 0.02)
"""Some steps of each stage: more of them take time, and no memory."""
_PIECE_IMAGES = 512
_DISTINCT_PIECES = 40
_EXEMPLARS = 50


@dataclass(frozen=True)
class Stage:
    """One stage of the update."""

    name: str
    seconds: float
    peak_bytes: int
    """the most memory that the process had up to its end (RSS)"""


def measure(images: int, setup: Setup, cache: Path | None, seed: int, progress: Progress) -> list[Stage]:
    """Run an update over so many images and return its stages; the last one's peak is that of all.

    Of ten images eight are trained on, one calibrates, one tests. cache: where crops and features are kept;
    None: in memory. Raises what the cache and the training raise.
    """
    stages: list[Stage] = []

    @contextmanager
    def stage(name: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        stages.append(Stage(name, time.perf_counter() - began, peak_bytes()))

    with stage("start"):
        plan = CropPlan(crop_px=CROP_PX)
        device = setup.torch_device
    with stage("crops"):
        items = _generated(images, seed, plan, cache, progress)
        ends = [8 * images // 10, 9 * images // 10, images]
        parts = [items.take(range(first, end)) for first, end in zip([0, *ends], ends, strict=False)]
    with stage("features"):
        stream = with_features(Stream("size", (Task("size", *parts),), plan=plan), setup, progress)
        task = stream.tasks[0]
    step = Step(
        task.train,
        CLASSES,
        setup.architecture,
        options=setup.options,
        recipe=replace(RECIPE, batch=setup.batch),
        seed=seed,
        device=device,
        progress=progress,
    )
    with stage("training"):
        learnt = LEARNERS[setup.learner](step)
    with stage("herding"):
        features = herding_features(learnt, task.train, device).numpy()
        families = np.array(task.train.families)
        for name in CLASSES:
            herd(features[families == name], _EXEMPLARS)
        del features
    with stage("update"):
        LEARNERS[setup.learner](replace(step, previous=learnt))
    with stage("evaluation"):
        judge = calibrated(learnt, setup, task.train, task.calibration, seed=seed)
        judge.judged(task.test)
    return stages


def peak_bytes() -> int:
    """Return the most memory that this process has had; `ru_maxrss` begins with that of its parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def _generated(
    images: int, seed: int, plan: CropPlan, cache: Path | None, progress: Progress
) -> LabelledCrops:
    pieces: list[Piece] = []
    for first in range(0, images, _PIECE_IMAGES):
        numbers = range(first, min(first + _PIECE_IMAGES, images))
        key = identity(plan, None, ["updater.benchmark.size", str(seed), str(numbers)])
        pieces.append(fetch(cache, key, lambda numbers=numbers: _piece(numbers, seed)))  # type: ignore[misc]
        progress("crops", numbers.stop, images)
    names = [str(number) for number in range(images)]
    return join(pieces, names, [CLASSES[number % 2] for number in range(images)], "size", plan)


def _piece(numbers: Sequence[int], seed: int) -> Piece:
    """Half of the images smooth noise, half of them noise in blocks of two pixels, on a grey of its own."""
    number, count, side = numbers[0] // _PIECE_IMAGES % _DISTINCT_PIECES, len(numbers), CROP_PX
    rng = np.random.default_rng([seed, number])
    noise = rng.standard_normal((count, side, side, 3), np.float32)
    coarse = noise[:, ::2, ::2].repeat(2, 1).repeat(2, 2)
    odd = (np.array(numbers) % 2 == 1)[:, None, None, None]
    grey = rng.uniform(60, 190, (count, 1, 1, 1)).astype(np.float32)
    crops: NDArray[np.uint8] = np.clip(grey + 12 * np.where(odd, coarse, noise), 0, 255).astype(np.uint8)
    digests = [f"{seed}/{number}" for number in numbers]
    return Piece(tuple(digests), tuple(digests), crops, np.arange(len(crops) + 1))


def size_json(images: int, stages: Sequence[Stage], setup: Setup) -> str:
    """Return the stages, and the options that they are of."""
    found = {one.name: {"seconds": one.seconds, "peak_bytes": one.peak_bytes} for one in stages}
    about = {"benchmark": "size", "images": images, "device": setup.device, "options": setup.described()}
    return json.dumps(about | {"stages": found}, indent=1) + "\n"

"""`python memory_of_size.py FILE [CACHE]`: by how many bytes 8,000 images take more of an update than 500.

The images are noise of 32 px, of two classes that differ in their grain; each is one crop. Without CACHE,
crops and what is computed of them are held in memory. What is taken whatever the number (how many items are
looked at at once) is made small, so that a few images show what grows.
"""

import sys
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch

from detector.release.manifest import Architecture
from ingest.records import CropPlan
from memory.rehearsal import herd
from updater.benchmark.continual import scoring
from updater.benchmark.continual.setup import Setup
from updater.benchmark.continual.streams import with_features
from updater.benchmark.data.cache import Piece, fetch, identity
from updater.benchmark.data.crops import join
from updater.benchmark.data.tasks import Stream, Task
from updater.benchmark.learners.methods import LEARNERS
from updater.data import stored_rows
from updater.training import crop_rows, loop
from updater.training.step import Options, Recipe, Step

PLAN = CropPlan(crop_px=32)
CLASSES = ("size/real", "size/fake")
PIECE = 128
"""images that are made and kept together; forty pieces differ, and then they come again"""


def piece(numbers: range) -> Piece:
    """Half of the images smooth noise, half of them noise in blocks of two pixels, on a grey of its own."""
    count, rng = len(numbers), np.random.default_rng(numbers[0] // PIECE % 40)
    noise = rng.standard_normal((count, 32, 32, 3), np.float32)
    coarse = noise[:, ::2, ::2].repeat(2, 1).repeat(2, 2)
    odd = (np.array(numbers) % 2 == 1)[:, None, None, None]
    grey = rng.uniform(60, 190, (count, 1, 1, 1)).astype(np.float32)
    crops = np.clip(grey + 12 * np.where(odd, coarse, noise), 0, 255).astype(np.uint8)
    names = tuple(map(str, numbers))
    return Piece(names, names, crops, np.arange(count + 1), ("",) * count)


def peak_of_update(images: int, setup: Setup, cache: Path | None) -> int:
    """Run an update over so many images, from crops to an evaluation; return the process's peak in bytes."""
    parts = [range(first, min(first + PIECE, images)) for first in range(0, images, PIECE)]
    keys = [identity(PLAN, None, [str(part)]) for part in parts]
    pieces = [fetch(cache, key, partial(piece, part)) for key, part in zip(keys, parts, strict=True)]
    families = [CLASSES[number % 2] for number in range(images)]
    items = join(pieces, [str(number) for number in range(images)], families, "size", PLAN)
    sides = [items.take(range(*pair)) for pair in pairwise([0, 8 * images // 10, 9 * images // 10, images])]
    (task,) = with_features(Stream("size", (Task("size", *sides),), plan=PLAN), setup, lambda *_: None).tasks
    recipe = Recipe(20, 1e-3, 100, 2e-3, 0.02, batch=setup.batch)
    step = Step(task.train, CLASSES, setup.architecture, options=setup.options, recipe=recipe)
    learnt = LEARNERS[setup.learner](step)
    features = scoring.network_output(learnt, task.train, step.device).embedding.numpy()
    for name in CLASSES:
        herd(features[np.array(task.train.families) == name], 50)
    del features
    LEARNERS[setup.learner](replace(step, previous=learnt))
    scoring.calibrate_model(learnt, setup, task.train, task.calibration, seed=0).judge(task.test)
    # `ru_maxrss` would begin with that of the parent.
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def main() -> None:
    said, cache = Path(sys.argv[1]), Path(sys.argv[2]) if sys.argv[2:] else None
    torch.set_num_threads(1)
    stored_rows.MAX_HELD_BYTES = 2**18 if cache else 2**40
    loop._WHITENED_ON = scoring.MAX_FITTED_ON = crop_rows._ITEMS_AT_ONCE = PIECE
    setup = Setup(architecture=Architecture(crop_px=32, width=8), options=Options(exposure="none"))
    # What the first run alone leaves behind does not count.
    peaks = [peak_of_update(images, setup, cache) for images in (500, 500, 8000)]
    said.write_text(str(peaks[2] - peaks[1]))


if __name__ == "__main__":
    main()

"""Whether training for a task waits for its data: its images/s, and those of the same steps on one batch."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import repeat
from statistics import median

import torch

from updater.benchmark.forgerynet.training import Batches, Draw, Source, Trained, drawn, train
from updater.benchmark.speed import Speed

_WARM = 6
"""steps before the clock starts: what was loaded ahead must not count"""
_ROUNDS = 3


def measure(
    stage: str,
    what: Trained,
    *,
    seed: int,
    device: torch.device,
    steps: int = 24,
    progress: Callable[[str, int, int], None] = lambda stage, done, total: None,
) -> Speed:
    """Return the speed of training, the median of three rounds; the networks are thrown away.

    Loop and fixed batch take turns, since a machine's speed drifts. A video counts as one image.
    """
    times: dict[Draw, list[float]] = {drawn: [], _on_one_batch: []}
    short = replace(what.recipe, steps=_WARM + steps)
    done, total = 0, _ROUNDS * len(times) * short.steps
    for _ in range(_ROUNDS):
        for draw, found in times.items():
            clock = _Clock(device)

            def told(step: int, of: int, clock: "_Clock" = clock) -> None:
                nonlocal done
                done += 1
                if step in (_WARM, of):
                    clock.read()
                progress(stage, done, total)

            train(
                what.make,
                what.source,
                short,
                what.loss,
                seed=seed,
                device=device,
                checkpoint=None,
                progress=told,
                draw=draw,
            )
            found.append(clock.seconds / steps)
    loop, fixed = (short.batch / median(found) for found in times.values())
    return Speed(stage, loop, fixed)


@contextmanager
def _on_one_batch(source: Source, batch: int, steps: range, seed: int) -> Iterator[Batches]:
    """Give the first batch again and again, so that nothing is loaded."""
    with drawn(source, batch, range(steps.start, steps.start + 1), seed) as batches:
        ready = next(iter(batches))
    yield repeat(ready, len(steps))


class _Clock:
    def __init__(self, device: torch.device) -> None:
        self._device, self._read = device, list[float]()

    def read(self) -> None:
        """Note the time, once the device has done what it was given."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._read.append(time.perf_counter())

    @property
    def seconds(self) -> float:
        """Between the first time that was noted and the last."""
        return self._read[-1] - self._read[0]

"""How busy the network is kept: images/s of the training loop, and of its steps on a batch made before."""

import itertools
import json
import time
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
import numpy.typing as npt
import torch
from pydantic import JsonValue

from detector.model.backbone import NoBackbone
from detector.model.network import Network
from updater.benchmark.continual.setup import Setup
from updater.benchmark.data.crops import CropReader
from updater.benchmark.synthetic.tasks import load_synthetic
from updater.progress import Progress
from updater.training import loop
from updater.training.checkpoint import Checkpoint
from updater.training.crop_rows import Rows
from updater.training.forward import Images, Pools
from updater.training.loop import Training, item_weights
from updater.training.losses import classification
from updater.training.pools import backbone_rows
from updater.training.step import Step

_WARM = 16
"""steps before the clock starts: what was drawn ahead must not count, and rows are drawn ahead in sixteens"""
_ROUNDS = 3


@dataclass(frozen=True)
class Speed:
    """Of one stage of the training: "backbone", on crops, where there is one, or "balanced", on rows."""

    stage: str
    loop: float
    """images/s, pseudo-forgeries among them"""
    fixed: float
    """images/s of the same steps on a batch made ready before"""

    @property
    def share(self) -> float:
        """How much of the time the network is trained and not waited for; 1 is all of it."""
        return self.loop / self.fixed


@dataclass(frozen=True)
class _OnOneBatch(Training):
    """The same loop on its first batch again and again, so that nothing is drawn, forged or brought over."""

    def batches(
        self, network: Network, weights: npt.NDArray[np.float64], numbers: range, rows: Rows | None
    ) -> Generator[Images | Pools, None, None]:
        drawn = super().batches(network, weights, range(numbers.start, numbers.start + 1), rows)
        ready = next(iter(drawn))
        return (ready for _ in numbers)


def measure(step: Step, steps: tuple[int, int] = (46, 336)) -> list[Speed]:
    """Train on a step's items and return the speed of each stage, the median of three rounds.

    steps: of both stages, for one round. Loop and fixed batch take turns, since a machine's speed drifts.
    The network is thrown away. The step's progress is told of every training step as one of all.
    """
    with torch.random.fork_rng(devices=[step.device] if step.device.type == "cuda" else []):
        torch.manual_seed(step.seed)
        network = loop.start(step)
        data = loop.training_set(step, network)
        loop.whiten(network, step, data)
        loss, weights = classification(step, data), item_weights(data.targets, 0.5)
        stages = dict(zip(("backbone", "balanced"), steps, strict=True))
        if isinstance(network.backbone, NoBackbone):
            del stages["backbone"]  # nothing would train it
        speeds, done, total = [], itertools.count(1), 2 * _ROUNDS * sum(stages.values())
        for stage, count in stages.items():
            rows = None if stage == "backbone" else backbone_rows(network, data.crops, step.device)
            times: dict[type[Training], list[float]] = {Training: [], _OnOneBatch: []}
            for _, kind in itertools.product(range(_ROUNDS), times):
                clock = _Clock(step.device, lambda stage: step.progress(stage, next(done), total))
                run = kind(replace(step, progress=clock), data, Checkpoint(None, "", (stage,)))
                run.run(stage, network, loss, weights, steps=count, rate=1e-4, rows=rows)
                times[kind].append(clock.seconds / (count - _WARM))
            images = step.recipe.batch * step.recipe.crops_an_item
            speeds.append(Speed(stage, *(images / median(found) for found in times.values())))
    return speeds


def measure_on_own_stream(reader: CropReader, setup: Setup, seed: int, progress: Progress) -> list[Speed]:
    """Return the speed of a setup's first step on a few media of the own stream; its learner has no part.

    Raises what `load_synthetic` raises.
    """
    (task,) = load_synthetic(reader, families=("upsampled",), train=32, calibration=1, test=1).tasks
    return measure(
        Step(
            task.train,
            task.classes,
            setup.architecture,
            options=setup.options,
            recipe=setup.recipe(len(task.train), first=True),
            seed=seed,
            device=setup.torch_device,
            start_from=setup.start_from,
            progress=progress,
        )
    )


def speed_json(speeds: Sequence[Speed], device: str, options: dict[str, JsonValue]) -> str:
    """Return the speeds, and the options that they are of."""
    stages = {
        one.stage: {
            "images_per_second": one.loop,
            "fixed_images_per_second": one.fixed,
            "share": one.share,
        }
        for one in speeds
    }
    about = {"benchmark": "speed", "device": device, "options": options}
    return json.dumps(about | {"stages": stages}, indent=1) + "\n"


class _Clock:
    """Called after each step; `seconds` is the time from the last warm step to now."""

    def __init__(self, device: torch.device, tell: Callable[[str], None]) -> None:
        self._device, self._tell, self._started, self.seconds = device, tell, 0.0, 0.0

    def __call__(self, stage: str, done: int, total: int) -> None:
        if done in (_WARM, total):
            if self._device.type == "cuda":
                torch.cuda.synchronize(self._device)
            self._started, self.seconds = time.perf_counter(), time.perf_counter() - self._started
        self._tell(stage)

"""A network trained by a recipe: by SGD, in one process or several, and on after an interruption.

A recipe has the paper's constants where there is a GPU, and a small form of them elsewhere. He et al. 2021,
"ForgeryNet: A Versatile Benchmark for Comprehensive Forgery Analysis", appendix: SGD with Nesterov's momentum
of 0.9; the rate rises over the first steps and is halved several times. Where fewer steps are taken, rise and
falls come at the same shares of them.
"""

import hashlib
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import islice, product
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from updater.benchmark.forgerynet.choices import Choices
from updater.data.layouts.forgerynet import Medium
from updater.progress import Steps, no_steps
from updater.training.crop_rows import in_turn
from updater.training.fit import Checkpoint, Descent, TrainingStage, fit, half_precision
from updater.training.processes import by_share, count, number

MOMENTUM = 0.9


@dataclass(frozen=True)
class NetworkRecipe:
    """The settings of a training, its network and media aside.

    px: side of the network's input. rate: after the rise, and before the first fall. rise: share of the steps
    in which the rate goes from the first one to the highest. falls: shares of the steps after which the rate
    is halved. frames: of a clip. stride: frames of the video from one frame of a clip to the next.
    """

    px: int
    batch: int
    steps: int
    rate: float
    first_rate: float
    rise: float
    falls: tuple[float, ...]
    weight_decay: float
    frames: int = 1
    stride: int = 1

    def rate_at(self, step: int) -> float:
        """Return the rate of a step, counted from 0."""
        done = step / self.steps
        if done < self.rise:
            return self.first_rate + (self.rate - self.first_rate) * done / self.rise
        return float(self.rate * 0.5 ** sum(done >= fall for fall in self.falls))


_IMAGE = NetworkRecipe(224, 128, 100_000, 0.05, 0.01, 0.01, (0.2, 0.4, 0.6, 0.7, 0.8, 0.9), 1e-4)
_VIDEO = NetworkRecipe(224, 64, 50_000, 0.02, 1e-3, 0.01, (0.4, 0.6, 0.8, 0.9), 1e-4, frames=16, stride=4)
PAPER: Mapping[Medium, NetworkRecipe] = {"image": _IMAGE, "video": _VIDEO}
SMALL: Mapping[Medium, NetworkRecipe] = {
    "image": replace(_IMAGE, px=128, batch=32, steps=600),
    "video": replace(_VIDEO, px=96, batch=8, steps=300, frames=8),
}
"""for some minutes of two cores"""


def recipe_of(medium: Medium, choices: Choices, device: torch.device, px: int | None = None) -> NetworkRecipe:
    """Return the recipe of a task on a device, as the choices change it. px: the paper's side."""
    recipe = PAPER[medium] if device.type == "cuda" else SMALL[medium]
    if px is not None and device.type == "cuda":
        recipe = replace(recipe, px=px)
    chosen = {name: getattr(choices, name) for name in ("px", "batch", "steps", "rate")}
    recipe = replace(recipe, **{name: value for name, value in chosen.items() if value is not None})
    return replace(recipe, first_rate=min(recipe.first_rate, recipe.rate))


Example = tuple[NDArray[np.uint8], NDArray[Any]]
"""what is shown, uint8 RGB [S, S, 3] or [T, S, S, 3]; and what the network is to say of it"""
Load = Callable[[int, np.random.Generator], Example]
"""(row, generator) → an example of that row"""
Loss = Callable[[Tensor, Tensor], Tensor]
"""(what the network says, [B, ...]; targets [B, ...]) → the loss of a batch"""


class StepBatch(NamedTuple):
    """A process's share of the batch of a step: views, uint8 [b, ..., S, S, 3], and targets, [b, ...]."""

    step: int
    views: Tensor
    targets: Tensor


_STAGE = "training"
_AHEAD = 4
"""batches that are loaded ahead"""
_ITEMS_AHEAD = 32
"""files, while a network is asked"""
T = TypeVar("T")


@dataclass(frozen=True)
class TrainingJob:
    """A task's training: a network on examples, by a recipe and a loss. Rows come by chance, with own draws.

    chances: [rows], sum 1. identity: everything that the examples follow from.
    """

    make: Callable[[], nn.Module]
    load: Load
    chances: NDArray[np.float64]
    identity: str
    recipe: NetworkRecipe
    loss: Loss


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of logits [B, K]; of [B, T, K], over all T that a network says it at."""
    if logits.ndim == 3:
        targets = targets[:, None].expand(-1, logits.shape[1])
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def train(
    job: TrainingJob, *, seed: int, device: torch.device, checkpoint: Path | None, progress: Steps = no_steps
) -> nn.Module:
    """Return a network that was trained by the recipe, ready to be asked.

    The same arguments give the same weights on a device with the same number of threads, interrupted or not:
    with a checkpoint, training goes on behind the last of every 25 steps. Several processes share a batch,
    and draw what one of them would. The global random state is left as it was. Raises what its source raises,
    and torch.OutOfMemoryError where the device does not hold a step.
    """
    recipe = job.recipe
    identity = hashlib.sha256(repr((job.identity, asdict(recipe), seed)).encode()).hexdigest()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        network = job.make().to(device).train()
        parameters = [value for value in network.parameters() if value.requires_grad]
        optimiser = torch.optim.SGD(
            parameters, lr=recipe.rate, momentum=MOMENTUM, nesterov=True, weight_decay=recipe.weight_decay
        )

        def set_rate(step: int) -> None:
            for group in optimiser.param_groups:
                group["lr"] = recipe.rate_at(step)

        def loss_of(batch: StepBatch) -> Tensor:
            # What a network draws by itself follows from the step, so that a resumed run repeats it.
            torch.manual_seed(int(np.random.default_rng([seed, batch.step]).integers(2**62)))
            return _loss(network, job.loss, batch, recipe.batch, device)

        fit(
            network,
            lambda steps: draw_batches(job, steps, seed),
            loss_of,
            Descent(optimiser, recipe.steps, set_rate, shared=parameters),
            TrainingStage(Checkpoint(checkpoint, identity, (_STAGE,)), _STAGE),
            progress,
        )
    return network.eval()


def as_input(views: Tensor, device: torch.device) -> Tensor:
    """Return uint8 [B, ..., S, S, 3] as the networks take it: float32 [B, 3, ..., S, S], 0..1.

    Published preprocessing divides by 255 and does nothing else.
    """
    return views.to(device, non_blocking=True).movedim(-1, 1).float() / 255


def _loss(network: nn.Module, loss: Loss, own: StepBatch, examples: int, device: torch.device) -> Tensor:
    """Return the loss of a whole batch of so many examples, of which this process has its share."""

    def class_logits(_: Tensor) -> Tensor:
        with half_precision(device):
            logits: Tensor = network(as_input(own.views, device))
        return logits.float()

    places = torch.arange(examples)
    return loss(by_share(class_logits, places), by_share(lambda _: own.targets.to(device), places))


def draw_batches(job: TrainingJob, steps: range, seed: int) -> Generator[StepBatch, None, None]:
    """Yield this process's share of each step's batch, loaded by threads ahead of time.

    What is drawn of an example follows from step and place alone, whoever loads it. Close it to end the
    threads.
    """
    batch = job.recipe.batch
    own = range(batch * number() // count(), batch * (number() + 1) // count())
    up_to = np.cumsum(job.chances)

    def load(at: tuple[int, int]) -> Example:
        rng = np.random.default_rng([seed, *at])
        # The last sum may be just below 1.
        row = min(int(np.searchsorted(up_to, rng.random(), "right")), len(up_to) - 1)
        return job.load(row, rng)

    threads = ThreadPoolExecutor(os.cpu_count() or 1)
    try:
        examples = in_turn(threads, load, product(steps, own), _AHEAD * len(own))
        for step in steps:
            views, targets = map(np.stack, zip(*islice(examples, len(own)), strict=True))
            yield StepBatch(step, torch.from_numpy(views), torch.from_numpy(targets))
    finally:
        threads.shutdown(cancel_futures=True)


def loaded_ahead(load: Callable[[T], NDArray[np.uint8]], items: Sequence[T]) -> Iterator[NDArray[np.uint8]]:
    """Yield each item's loaded array, in order; threads load some ahead."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as threads:
        yield from in_turn(threads, load, items, _ITEMS_AHEAD)

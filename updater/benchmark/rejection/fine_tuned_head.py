"""How a head of its own is trained on frozen embeddings: plain gradient descent for a short while."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from detector.model.scores import energy
from updater.benchmark.rejection.evidence import Evidence, Known, Score, checked
from updater.training.fit import Descent, by_schedule, fit


@dataclass(frozen=True)
class FineTuning:
    """OpenCIL's way (its configurations): momentum 0.9, decay 5e-4, a rate that falls as a cosine.

    There it falls after each of ten epochs, which are 390 steps on ten classes of CIFAR-100; here after each
    step.
    """

    steps: int = 300
    batch: int = 128
    rate: float = 0.1


PLAN = FineTuning()


def fine_tune(
    head: nn.Linear, loss: Callable[[torch.Generator], Tensor], plan: FineTuning, seed: int
) -> None:
    """Train a head in place to lower `loss(generator)`, which draws its own batches.

    The global random state is not used.

    Gradients are clipped to a length of 5: squared hinges at a distance of 27 would else throw the head far
    off in the first steps.
    """
    generator = torch.Generator().manual_seed(seed)
    optimiser = torch.optim.SGD(head.parameters(), lr=plan.rate, momentum=0.9, weight_decay=5e-4)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=plan.steps)
    fit(
        head,
        lambda steps: (generator for _ in steps),
        loss,
        Descent(optimiser, plan.steps, by_schedule(falling), longest=5.0),
    )


def extra_head(known: Known) -> nn.Linear:
    """Return a head that can be trained and begins as the network's, D to K."""
    classes, width = known.head_weight.shape
    with torch.random.fork_rng(devices=[]):
        head = nn.Linear(width, classes)
    with torch.no_grad():
        head.weight.copy_(torch.tensor(known.head_weight))
        head.bias.copy_(torch.tensor(known.head_bias))
    return head


def pick(generator: torch.Generator, of: Tensor, count: int) -> Tensor:
    """Draw `count` of these numbers, int64, with repetition."""
    return of[torch.randint(len(of), (count,), generator=generator)]


def new_and_exemplars(old: npt.NDArray[np.bool_]) -> tuple[Tensor, Tensor]:
    """Return the numbers of new items and of exemplars, int64; exemplars alone are taken as new."""
    new, exemplars = torch.from_numpy(np.flatnonzero(~old)), torch.from_numpy(np.flatnonzero(old))
    return (new, exemplars) if len(new) else (exemplars, new)


def energy_of_head(known: Known, head: nn.Linear) -> Score:
    """Return the energy of a trained head as a score, on the embedding as it is."""

    def score(evidence: Evidence) -> npt.NDArray[np.float32]:
        with torch.no_grad():
            return np.asarray(energy(head(torch.tensor(evidence.embedding))).numpy())

    return checked(known, score)

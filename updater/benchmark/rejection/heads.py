"""Heads that are trained on frozen embeddings, and those of OpenCIL whose loss is of the classes alone.

Miao et al. 2024, "OpenCIL: benchmarking out-of-distribution detection in class-incremental learning", section
3.2: LogitNorm, T2FNorm and RegMixup. The loss of a batch of new items is added to that of a batch of
exemplars. Only the head f trains, on frozen embeddings h; it begins as the classifier, and its score is the
energy of h as it is. AugMix, whose items change, is augmix.py.

A head is fitted on what is known and on which items are exemplars of earlier steps, bool [n].
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from detector.model.scores import energy
from updater.benchmark.rejection.evidence import FitSet, Score, as_score
from updater.draws import SeedPurpose
from updater.training.fit import Descent, by_schedule
from updater.training.fit import fit as train


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
    train(
        head,
        lambda steps: (generator for _ in steps),
        loss,
        Descent(optimiser, plan.steps, by_schedule(falling), longest=5.0),
    )


def extra_head(known: FitSet) -> nn.Linear:
    """Return a head that can be trained and begins as the network's, D to K."""
    classes, width = known.head_weight.shape
    head = nn.Linear(width, classes, device="meta")  # nothing is drawn for it
    begun = {"weight": torch.tensor(known.head_weight), "bias": torch.tensor(known.head_bias)}
    head.load_state_dict(begun, assign=True)
    return head


def pick(generator: torch.Generator, of: Tensor, count: int) -> Tensor:
    """Draw `count` of these numbers, int64, with repetition."""
    return of[torch.randint(len(of), (count,), generator=generator)]


def new_and_exemplars(old: npt.NDArray[np.bool_]) -> tuple[Tensor, Tensor]:
    """Return the numbers of new items and of exemplars, int64; exemplars alone are taken as new."""
    new, exemplars = torch.from_numpy(np.flatnonzero(~old)), torch.from_numpy(np.flatnonzero(old))
    return (new, exemplars) if len(new) else (exemplars, new)


def energy_of_head(head: nn.Linear) -> Score:
    """Return the energy of a trained head as a score, on the embedding as it is."""
    return as_score(lambda evidence: energy(head(torch.tensor(evidence.embedding))).detach())


LOGIT_TEMPERATURE = 0.04
FEATURE_TEMPERATURE = 0.1
MIXING_ALPHA = 10.0

Loss = Callable[[nn.Linear, Tensor, Tensor, Tensor], Tensor]
"""(head, a batch's items, int64 [M], their embeddings [M, D], their targets [M]) → their loss, a scalar."""


def fit(known: FitSet, old: npt.NDArray[np.bool_], seed: int, plan: FineTuning, loss: Loss) -> Score:
    """Train the head; old: bool [n], the exemplars of earlier steps."""
    parts = [part for part in new_and_exemplars(old) if len(part)]
    head, embedding, target = extra_head(known), *known.rows()

    def of_both(generator: torch.Generator) -> Tensor:
        drawn = [pick(generator, part, plan.batch) for part in parts]
        return torch.stack([loss(head, items, embedding[items], target[items]) for items in drawn]).sum()

    fine_tune(head, of_both, plan, seed)
    return energy_of_head(head)


def fit_logit_norm(known: FitSet, old: npt.NDArray[np.bool_], seed: int, plan: FineTuning = PLAN) -> Score:
    """Train the head by LogitNorm, L = CE(f / (tau |f|), y): longer logits cannot lower it.

    Wei et al. 2022, "Mitigating neural network overconfidence with logit normalization"; tau = 0.04 there
    (its CIFAR-10 run) and in OpenCIL's configuration. old: as `fit` has it.
    """

    def loss(head: nn.Linear, items: Tensor, rows: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(F.normalize(head(rows), dim=1) / LOGIT_TEMPERATURE, target)

    return fit(known, old, seed, plan, loss)


def fit_t2f_norm(known: FitSet, old: npt.NDArray[np.bool_], seed: int, plan: FineTuning = PLAN) -> Score:
    """Train the head by T2FNorm, L = CE(f(h / (tau |h|)), y): features of one length, in training only.

    Regmi et al. 2023, "T2FNorm: extremely simple scaled train-time feature normalization for OOD detection";
    tau = 0.1 as in OpenCIL's configuration. old: as `fit` has it.
    """

    def loss(head: nn.Linear, items: Tensor, rows: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(head(F.normalize(rows, dim=1) / FEATURE_TEMPERATURE), target)

    return fit(known, old, seed, plan, loss)


def fit_regmixup(known: FitSet, old: npt.NDArray[np.bool_], seed: int, plan: FineTuning = PLAN) -> Score:
    """Train the head by RegMixup: mixtures of items beside the items themselves (`mixing_loss`).

    Pinto et al. 2022, "RegMixup: mixup as a regularizer can surprisingly improve accuracy and
    out-of-distribution robustness"; the share is one draw of Beta(10, 10) a batch. The published code mixes
    crops and passes them through the frozen backbone; here frozen embeddings are mixed. old: as `fit` has it.
    """
    rng = SeedPurpose.REGMIXUP.generator(seed)

    def loss(head: nn.Linear, items: Tensor, rows: Tensor, target: Tensor) -> Tensor:
        partner = torch.from_numpy(rng.permutation(len(items)))
        return mixing_loss(head, rows, target, partner, float(rng.beta(MIXING_ALPHA, MIXING_ALPHA)))

    return fit(known, old, seed, plan, loss)


def mixing_loss(head: nn.Linear, rows: Tensor, target: Tensor, partner: Tensor, share: float) -> Tensor:
    """Return 1/2 CE(h, y) + 1/2 [s CE(m, y) + (1 - s) CE(m, y')], m = s h + (1 - s) h', a scalar.

    rows: float32 [M, D]; target: int64 [M]; partner: int64 [M], the row that each is mixed with; share: s.
    The published code takes one mean over items and mixtures together, hence the halves.
    """
    mixtures = head(share * rows + (1 - share) * rows[partner])
    own, other = F.cross_entropy(mixtures, target), F.cross_entropy(mixtures, target[partner])
    return 0.5 * (F.cross_entropy(head(rows), target) + share * own + (1 - share) * other)

"""Learners whose head is corrected once training is done, for it leans to the new classes: BiC and WA.

Both train by (1 - lambda) times the cross-entropy plus lambda times the distillation of old logits at
temperature 2, lambda = n / (n + m) for n old and m new classes. Both need a linear head, into which the
correction is folded, and heed every option; "bc" has no new logit, and nothing to correct.

BiC: Wu et al. 2019, "Large scale incremental learning". Training, eq. 1-4. Bias correction, eq. 5-6: logits
of new classes become alpha * o + beta, fitted on items that were held out of training, a tenth of each
class's exemplars and as many of each new one; the rest of the network is fixed. A later step distils
corrected logits, as in the paper. The fit is that of OpenCIL's code: SGD on the cross-entropy of the logits'
softmax, as if it were logits; the paper has that of the logits. Held out are whole groups, since
near-duplicates on both sides would hide the bias.

WA: Zhao et al. 2020, "Maintaining discrimination and fairness in class incremental learning". Training, eq.
4. Aligning, eq. 5-7: a new class's logit is multiplied by
  gamma = mean of |w| over old classes / mean of |w| over new classes,
by its weights alone: its bias, which the paper's head does not have, stays, as in PyCIL's and OpenCIL's code.
"""

from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from detector.model.network import Network
from updater.candidate.gate_inputs import output_of
from updater.data.training_data import LabelledCrops
from updater.draws import SeedPurpose
from updater.progress import no_progress
from updater.training import schemes, two_stages
from updater.training.loop import Batch, Loss, TrainingSet
from updater.training.losses import classification, distilled_items, soft_cross_entropy, teacher_logits
from updater.training.step import Step, TrainedModel, with_head


def learn_bic(step: Step) -> TrainedModel:
    """Train a network on nine tenths of a step and correct its head on the rest.

    Raises ValueError for a cosine head, whose logits two numbers cannot be folded into. Where no old class
    has the two groups that holding one out takes, nothing is corrected and nothing held out.
    """
    out = np.zeros(len(step.train), bool)
    if step.old and step.options.scheme != "bc":
        out = held_out(step.train, step.old, step.seed)
    network = _train(replace(step, train=step.train.take(np.flatnonzero(~out))), "bic")
    if not out.any():
        return TrainedModel(network, step.classes)
    items = step.train.take(np.flatnonzero(out))
    logits = output_of(network, items, step.device, "", no_progress).logits
    target = torch.tensor(schemes.targets(items.families, step.classes, step.options))
    alpha, beta = fit_correction(logits, target, len(step.old), step.seed)
    return TrainedModel(correct_bias(network, alpha, beta, len(step.old)), step.classes)


def _train(step: Step, method: str) -> Network:
    if step.architecture.head != "linear":
        raise ValueError(f"{method} corrects a linear head; the architecture has a cosine one")
    return two_stages.train(
        step, method, lambda network, data: interpolate(classification(step, data), step, data)
    ).network


def interpolate(loss: Loss, step: Step, data: TrainingSet) -> Loss:
    """Return (1 - lambda) * loss + lambda * distillation, lambda = |old| / |all classes|.

    Wu et al. 2019 (BiC), eq. 4, and Zhao et al. 2020 (WA), eq. 4: the more there is to keep, the more
    keeping weighs. options.distillation multiplies lambda; the first step has nothing to keep.
    """
    share = min(1.0, step.options.distillation * len(step.old) / len(step.classes))
    if not share:
        return loss
    wanted, rows = teacher_logits(step, data), distilled_items(step, data)

    def total(batch: Batch) -> Tensor:
        held = rows(batch)
        kept = soft_cross_entropy(batch.output.logits[held, : wanted.shape[1]], wanted[batch.items][held])
        return (1 - share) * loss(batch) + share * kept

    return total


def held_out(items: LabelledCrops, old: tuple[str, ...], seed: int) -> npt.NDArray[np.bool_]:
    """Return which of n items are held out, bool [n].

    Of every class as many groups, chosen at random: a tenth of those that the smallest old class has, at
    least one. A class of a single group gives none. None at all where no old class gives any.
    """
    families, groups = np.array(items.families), np.array(items.groups)
    of = {name: np.unique(groups[families == name]) for name in np.unique(families)}
    some = [len(items) for name, items in of.items() if name in old and len(items) > 1]
    chosen = np.zeros(len(items), bool)
    if not some:
        return chosen
    count = max(1, int(0.1 * min(some)))
    rng = SeedPurpose.BIAS_SPLIT.generator(seed)
    for name, numbers in of.items():
        drawn = rng.permutation(numbers)[: min(count, len(numbers) - 1)]
        chosen |= (families == name) & np.isin(groups, drawn)
    return chosen


def fit_correction(logits: Tensor, target: Tensor, old: int, seed: int) -> tuple[float, float]:
    """Return (alpha, beta) for the logits from `old` on, by the epochs, rates and batches of OpenCIL's code.

    logits: float32 [n, K]; target: int64 [n].
    """
    alpha, beta = both = torch.ones(1, requires_grad=True), torch.zeros(1, requires_grad=True)
    optimiser = torch.optim.SGD(both, lr=0.1, momentum=0.9, weight_decay=2e-4)
    falling = torch.optim.lr_scheduler.MultiStepLR(optimiser, (60, 100, 140))
    generator = torch.Generator().manual_seed(seed)
    for _ in range(170):
        for rows in torch.split(torch.randperm(len(target), generator=generator), 128):
            moved = torch.cat([logits[rows, :old], alpha * logits[rows, old:] + beta], 1)
            optimiser.zero_grad()
            torch.autograd.backward(F.cross_entropy(moved.softmax(1), target[rows]))
            optimiser.step()
        falling.step()
    return alpha.item(), beta.item()


def correct_bias(network: Network, alpha: float, beta: float, old: int) -> Network:
    """Return the network with alpha * o + beta for its logits from `old` on, folded into its linear head."""
    state = {name: value.clone() for name, value in network.head.state_dict().items()}
    state["weight"][old:] *= alpha
    state["bias"][old:] = alpha * state["bias"][old:] + beta
    return with_head(network, state)


def learn_wa(step: Step) -> TrainedModel:
    """Train a network on a step and align its head. Raises ValueError for a cosine head."""
    network = _train(step, "wa")
    state = network.head.state_dict()
    old = len(step.old) if step.options.scheme != "bc" else 0
    weight = align_weights(state["weight"], old)
    return TrainedModel(with_head(network, state | {"weight": weight}), step.classes)


def align_weights(weight: Tensor, old: int) -> Tensor:
    """Return the weight, float32 [K, D], with the rows from `old` on as long as those before, on average.

    Where there are no old classes, or no new ones, nothing changes.
    """
    if not 0 < old < len(weight):
        return weight
    norms = weight.norm(dim=1)
    return torch.cat([weight[:old], weight[old:] * norms[:old].mean() / norms[old:].mean()])

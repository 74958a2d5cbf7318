"""The losses that learners start from: the scheme's, with pseudo-forgeries, and those of distillation.

Distillation holds a network to what the previous one still says: its logits and embeddings.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from detector.model.scores import NetworkOutput
from updater.training import schemes
from updater.training.crop_rows import backbone_rows, classify_in_parts
from updater.training.loop import Batch, Loss, TrainingSet
from updater.training.schemes import Entropy
from updater.training.step import Step, load_trained

TEMPERATURE = 2.0
_OUTLIER_WEIGHT = 0.1
_MARGIN = 5.0
"""m of `outlier_energy`"""


def classification(step: Step, data: TrainingSet, entropy: Entropy | None = None) -> Loss:
    """Return the loss of a batch under the step's scheme and exposure.

    entropy: in place of the softmax cross-entropy with the recipe's label smoothing.

    Exposure. "class": the pseudo-forgeries are the K+1st class of the cross-entropy. "outliers": they are
    held to an energy above that of known media (`outlier_energy`). "none": there are none. Of a mixed batch
    it is the sum over both items' labels, by their shares (Zhang et al. 2018, "mixup", eq. 1).
    """
    options, fake, entropy = step.options, data.fake, entropy or schemes.smooth(step.recipe.label_smoothing)

    def of(batch: Batch) -> Tensor:
        if (share := batch.mixed) is not None:
            own = replace(batch, mixed=None)
            return share * of(own) + (1 - share) * of(replace(own, target=batch.target.flip(0)))
        output, target = _with_outliers(batch, len(fake))
        known = target < len(fake)
        if options.exposure == "class":
            logits = torch.cat([output.logits, output.pseudo_logit[:, None]], 1)
            return schemes.class_loss(logits, target, fake, options, entropy)
        value = output.logits.sum() * 0
        if known.any():
            value = schemes.class_loss(output.logits[known], target[known], fake, options, entropy)
        if options.exposure == "outliers":
            value = value + _OUTLIER_WEIGHT * outlier_energy(output.logits, known)
        return value

    return of


def _with_outliers(batch: Batch, known: int) -> tuple[NetworkOutput, Tensor]:
    """Return the items' output and target with those of the fresh pseudo-forgeries behind them."""
    if batch.outliers is None:
        return batch.output, batch.target
    pairs = zip(batch.output, batch.outliers, strict=True)
    target = batch.target.new_full((len(batch.outliers.logits),), known)
    return NetworkOutput(*(torch.cat(pair) for pair in pairs)), torch.cat([batch.target, target])


def outlier_energy(logits: Tensor, known: Tensor) -> Tensor:
    """Return mean (m + E_in - E_out)+ ^2 over all pairs, a scalar: outliers lie a margin above known media.

    logits: float32 [M, K]; known: bool [M]. E = -logsumexp(logits). Liu et al. 2020 (eq. 8) hold both sides
    to fixed margins, which fit one network; the difference of the two fits any. 0 where a side is empty.
    """
    energy = -torch.logsumexp(logits, 1)
    inside, outside = energy[known], energy[~known]
    if not len(inside) or not len(outside):
        return logits.sum() * 0
    return F.relu(_MARGIN + inside[:, None] - outside[None, :]).square().mean()


def teacher_logits(step: Step, data: TrainingSet) -> Tensor:
    """Return the previous network's logits of each whole item, float32 [n, K of before], computed once."""
    assert step.previous is not None
    old = load_trained(step.previous).to(step.device)
    rows = backbone_rows(old, data.crops, step.device)
    return torch.cat([part.logits for part in classify_in_parts(old, rows, data.features, data.starts)])


def distilled_items(step: Step, data: TrainingSet) -> Callable[[Batch], Tensor | slice]:
    """Return which of a batch's M items are held to the previous network, bool [M]; or all, as a slice.

    By options.distilled: every one, pseudo-forgeries too, or those of the previous network's classes (CDDB
    eq. 3, the set P). Of two logits for all classes ("bc") the previous network says nothing good of a new
    family: over all items, that family is learnt only when it is an old one.
    """
    if step.options.distilled == "all":
        return lambda batch: slice(None)
    old = torch.tensor([family in step.old for family in step.train.families])
    exemplar = F.pad(old, (0, len(data.targets) - len(old))).to(step.device)
    return lambda batch: exemplar[batch.items]


def distillation(logits: Tensor, teacher: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    """Return T^2 * mean KL(softmax(teacher / T) || softmax(logits / T)), a scalar; both float32 [M, K].

    Li and Hoiem 2016, "Learning without forgetting", eq. 2-3, less the teacher's own entropy; CDDB eq. 3.
    """
    return temperature**2 * soft_cross_entropy(logits, teacher, temperature, divergence=True)


def soft_cross_entropy(
    logits: Tensor, teacher: Tensor, temperature: float = TEMPERATURE, *, divergence: bool = False
) -> Tensor:
    """Return the mean of -sum softmax(teacher / T) * log softmax(logits / T), a scalar; both float32 [M, K].

    The distillation of BiC (eq. 2) and WA (eq. 3). divergence: less the teacher's entropy, which has no
    gradient; 0 then means that the two agree. 0 without rows, too.
    """
    if not len(logits):
        return logits.sum()
    wanted, predicted = F.softmax(teacher / temperature, 1), F.log_softmax(logits / temperature, 1)
    if divergence:
        return F.kl_div(predicted, wanted, reduction="batchmean")
    return -(wanted * predicted).sum(1).mean()

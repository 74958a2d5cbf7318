"""The loss that a learner starts from: the scheme's, with the pseudo-forgeries as the options say."""

import torch
import torch.nn.functional as F
from torch import Tensor

from detector.model.scores import NetworkOutput
from updater.training import schemes
from updater.training.loop import Batch, Loss, TrainingSet
from updater.training.schemes import Entropy
from updater.training.step import Step

_OUTLIER_WEIGHT = 0.1
_MARGIN = 5.0


def classification(step: Step, data: TrainingSet, entropy: Entropy | None = None) -> Loss:
    """Return the loss of a batch under the step's scheme and exposure.

    entropy: in place of the softmax cross-entropy with the recipe's label smoothing.

    Exposure. "class": the pseudo-forgeries are the K+1st class of the cross-entropy. "outliers": they are
    held to an energy above that of known media (`outlier_energy`). "none": there are none.
    """
    options, fake, entropy = step.options, data.fake, entropy or schemes.smoothed(step.recipe.label_smoothing)

    def of(batch: Batch) -> Tensor:
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


def outlier_energy(logits: Tensor, known: Tensor, margin: float = _MARGIN) -> Tensor:
    """Return mean (m + E_in - E_out)+ ^2 over all pairs, a scalar: outliers lie a margin above known media.

    logits: float32 [M, K]; known: bool [M]. E = -logsumexp(logits). Liu et al. 2020 (eq. 8) hold both sides
    to fixed margins, which fit one network; the difference of the two fits any. 0 where a side is empty.
    """
    energy = -torch.logsumexp(logits, 1)
    inside, outside = energy[known], energy[~known]
    if not len(inside) or not len(outside):
        return logits.sum() * 0
    return F.relu(margin + inside[:, None] - outside[None, :]).square().mean()

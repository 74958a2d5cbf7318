"""The loss that a learner starts from: the scheme's, with the pseudo-forgeries as the options say."""

import torch
import torch.nn.functional as F
from torch import Tensor

from detector.model.network import Network
from detector.model.scores.score import NetworkOutput
from updater.training import schemes
from updater.training.loop import Batch, Loss, TrainingSet
from updater.training.regularisers import (
    augmix,
    logitnorm,
    regmixup,
    t2fnorm,
)
from updater.training.schemes import Entropy
from updater.training.step import Step

_OUTLIER_WEIGHT = 0.1
_MARGIN = 5.0


def classification(step: Step, data: TrainingSet, entropy: Entropy | None = None) -> Loss:
    """Return the loss of a batch under the step's scheme, exposure and trained rejection.

    entropy: in place of the softmax cross-entropy with the recipe's label smoothing.

    Exposure. "class": the pseudo-forgeries are the K+1st class of the cross-entropy. "outliers": they are
    held to an energy above that of known media (`outlier_energy`). "none": there are none.

    Rejection. "logit-norm" and "t2f-norm" normalise what the cross-entropy reads; the energies keep what the
    network says. "augmix" adds the divergence between an item's versions, "regmixup" the loss of mixtures.
    The others change nothing here.
    """
    options, fake, entropy = step.options, data.fake, entropy or schemes.smoothed(step.recipe.label_smoothing)

    def read(batch: Batch, output: NetworkOutput) -> Tensor:
        if options.rejection == "t2f-norm":
            output = _of_normalised(batch.network, output)
        logits = output.logits
        if options.exposure == "class":
            logits = torch.cat([logits, output.pseudo_logit[:, None]], 1)
        return logitnorm.normalised(logits) if options.rejection == "logit-norm" else logits

    def classes(logits: Tensor, target: Tensor, kept: Tensor) -> Tensor:
        if not kept.any():
            return logits.sum() * 0
        return schemes.class_loss(logits[kept], target[kept], fake, options, entropy)

    def of(batch: Batch) -> Tensor:
        output, target = _with_outliers(batch, len(fake))
        known = target < len(fake)
        kept = torch.ones_like(known) if options.exposure == "class" else known
        value = classes(read(batch, output), target, kept)
        if options.exposure == "outliers":
            value = value + _OUTLIER_WEIGHT * outlier_energy(output.logits, known)
        if options.rejection == "augmix":
            versions = tuple(read(batch, view) for view in (batch.output, *batch.views))
            value = value + augmix.WEIGHT * augmix.jensen_shannon(versions)
        if batch.partner is not None:
            mixture, own, other = read(batch, batch.views[0]), batch.target, batch.target[batch.partner]
            both = kept[: len(own)] & kept[: len(own)][batch.partner]
            mixed = batch.share * classes(mixture, own, both)
            mixed = mixed + (1 - batch.share) * classes(mixture, other, both)
            value = value + regmixup.WEIGHT * mixed
        return value

    return of


def _of_normalised(network: Network, output: NetworkOutput) -> NetworkOutput:
    """Return what the heads say of the normalised embedding."""
    embedding = network.drop(t2fnorm.normalised(output.embedding))
    return output._replace(logits=network.head(embedding), pseudo_logit=network.pseudo_head(embedding)[:, 0])


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

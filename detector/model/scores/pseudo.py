"""Pseudo: the log odds of the class of pseudo-forgeries against all known classes.

s(x) = f_(K+1)(x) - log sum_(c <= K) exp(f_c(x)), in nats, with f_(K+1) the logit of the class of
pseudo-forgeries. It says something only of a network that was trained with them as a K+1st class
(updater/outliers).
"""

import torch

from detector.model.scores.score import Score
from detector.release.reference import Reference


def fit(_reference: Reference | None) -> Score:
    """Nothing is fitted."""
    return lambda output: output.pseudo_logit - torch.logsumexp(output.logits, dim=-1)

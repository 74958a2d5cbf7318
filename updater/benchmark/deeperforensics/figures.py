"""The figures of DeeperForensics-1.0's tables: of clips' scores, forged where they are 0.5 or more."""

import math

import numpy as np
from numpy.typing import ArrayLike

from updater.measures import auroc

_LEAST = 1e-7


def figures(forged: ArrayLike, labels: ArrayLike) -> dict[str, float]:
    """Return acc, auc, balanced_acc and log_loss.

    forged: how probably each of n clips is forged, [n] in 0..1; labels: 1 forged, 0 real. acc is the paper's
    (section 5.1): the share of clips that are told right, whatever the classes' sizes. auc and balanced_acc
    are not a number where a class is absent; log_loss is in nats, probabilities kept 1e-7 from 0 and 1.
    """
    scores, fake = np.asarray(forged, float), np.asarray(labels, int) == 1
    right = (scores >= 0.5) == fake
    both = bool(fake.any()) and not bool(fake.all())
    kept = np.clip(scores, _LEAST, 1 - _LEAST)
    return {
        "acc": float(right.mean()) if len(right) else math.nan,
        "auc": float(auroc(scores[fake], scores[~fake])) if both else math.nan,
        "balanced_acc": float((right[fake].mean() + right[~fake].mean()) / 2) if both else math.nan,
        "log_loss": float(-np.log(np.where(fake, kept, 1 - kept)).mean()) if len(right) else math.nan,
    }

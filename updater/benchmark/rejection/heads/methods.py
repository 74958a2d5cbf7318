"""The methods that train a head of their own on a learnt network, by name.

The benchmark learns the network first, takes the evidence of its training items as for any post-hoc score,
and then fits the head. The network is left as it is, and so are its answers.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from updater.benchmark.rejection.evidence import Known, Score
from updater.benchmark.rejection.heads import (
    augmix,
    ber,
    logitnorm,
    npos,
    npos_logistic,
    regmixup,
    t2fnorm,
    vos,
    vos_logistic,
)

HeadFit = Callable[[Known, npt.NDArray[np.bool_], int], Score]
"""(known, which of its items are exemplars of earlier steps, bool [n], seed) → score; the same seed gives the
same score. Raises EvidenceError."""

HEADS: dict[str, HeadFit] = {
    "ber": ber.fit,
    "ber-published": ber.fit_published,
    "vos": vos.fit,
    "vos-published": vos.fit_published,
    "vos-logistic": vos_logistic.fit,
    "npos": npos.fit,
    "npos-published": npos.fit_published,
    "npos-logistic": npos_logistic.fit,
    "logit-norm": logitnorm.fit,
    "t2f-norm": t2fnorm.fit,
    "augmix": augmix.fit,
    "regmixup": regmixup.fit,
}
"""All as OpenCIL has them, but that "ber", "vos" and "npos" take their margins from the items; with OpenCIL's
constants they are called "published". "logistic": with the loss of the method's own paper."""

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
    class_loss,
    npos,
    vos,
)

HeadFit = Callable[[Known, npt.NDArray[np.bool_], int], Score]
"""(known, which of its items are exemplars of earlier steps, bool [n], seed) → score; the same seed gives the
same score. Raises EvidenceError."""

HEADS: dict[str, HeadFit] = {
    "ber": ber.fit,
    "ber-published": ber.fit_published,
    "vos": vos.fit,
    "vos-published": vos.fit_published,
    "npos": npos.fit,
    "npos-published": npos.fit_published,
    "logit-norm": class_loss.fit_logit_norm,
    "t2f-norm": class_loss.fit_t2f_norm,
    "augmix": augmix.fit,
    "regmixup": class_loss.fit_regmixup,
}
"""All as OpenCIL has them, but that "ber", "vos" and "npos" take their margins from the items; with OpenCIL's
constants they are called "published"."""

"""The methods that train a head of their own on a learnt network, by the names of `Options.rejection`.

The benchmark learns the network first, takes the evidence of its training items as for any post-hoc score,
and then fits the head. The network is left as it is, and so are its answers.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from updater.rejection.evidence import Known, Score
from updater.rejection.heads import ber, npos, vos

HeadFit = Callable[[Known, npt.NDArray[np.bool_], int], Score]
"""(known, which of its items are exemplars of earlier steps, bool [n], seed) → score; the same seed gives the
same score. Raises EvidenceError."""

HEADS: dict[str, HeadFit] = {
    "vos": vos.fit,
    "npos": npos.fit,
    "ber": ber.fit,
    "ber-published": ber.fit_published,
}

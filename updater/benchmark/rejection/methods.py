"""The methods of rejection by name: post-hoc scores, and those that train a head of their own.

A post-hoc score is fitted on the evidence of a network's training items. A head is trained on the same,
frozen: the network is left as it is, and so are its answers. ODIN with its step is in neither table: it reads
crops instead of evidence.
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from updater.benchmark.rejection import (
    augmix,
    class_loss,
    embedding,
    energy_margins,
    forensic,
    gate,
    logits,
    npos,
    odin,
    vos,
)
from updater.benchmark.rejection.evidence import Fit, Known, Score

HeadFit = Callable[[Known, npt.NDArray[np.bool_], int], Score]
"""(known, which of its items are exemplars of earlier steps, bool [n], seed) → score; the same seed gives the
same score. Raises EvidenceError."""

POST_HOC: dict[str, Fit] = {
    "msp": logits.fit_msp,
    "odin": odin.fit,
    "max_logit": logits.fit_max_logit,
    "gen": logits.fit_gen,
    "react": logits.fit_react,
    "klm": logits.fit_klm,
    "relation": embedding.fit_relation,
    "nnguide": embedding.fit_nnguide,
    "embedding_knn": embedding.fit_embedding_knn,
    "forensic_knn": forensic.fit_forensic_knn,
    "mahalanobis": forensic.fit_mahalanobis,
    "fused": gate.fit_fused,
    **gate.FITS,
}
HEADS: dict[str, HeadFit] = {
    "ber": energy_margins.fit_ber,
    "ber-published": energy_margins.fit_ber_published,
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

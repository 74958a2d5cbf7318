"""The methods of rejection by name: post-hoc scores, and those that train a head of their own.

A post-hoc score is fitted on the evidence of a network's training items. A head is trained on the same,
frozen: the network is left as it is, and so are its answers. ODIN with its step is in neither table: it reads
crops instead of evidence.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

from updater.benchmark.rejection import augmix, embedding, forensic, heads, logits
from updater.benchmark.rejection.energy_margins import fit_ber
from updater.benchmark.rejection.evidence import Fit, FitSet, Score
from updater.benchmark.rejection.virtual_outliers import fit_npos, fit_vos

HeadFit = Callable[[FitSet, npt.NDArray[np.bool_], int], Score]
"""(known, which of its items are exemplars of earlier steps, bool [n], seed) → score; the same seed gives the
same score. Raises EvidenceError."""

POST_HOC: dict[str, Fit] = {
    "msp": logits.fit_msp,
    "odin": logits.fit_odin,
    "max_logit": logits.fit_max_logit,
    "gen": logits.fit_gen,
    "react": embedding.fit_react,
    "ash": embedding.fit_ash,
    "scale": embedding.fit_scale,
    "dice": embedding.fit_dice,
    "she": embedding.fit_she,
    "rmd": embedding.fit_rmd,
    "gradnorm": embedding.fit_gradnorm,
    "klm": logits.fit_klm,
    "relation": embedding.fit_relation,
    "nnguide": embedding.fit_nnguide,
    "nnguide-published": partial(embedding.fit_nnguide, neighbours=100, share=0.01),
    "embedding_knn": embedding.fit_embedding_knn,
    "react-published": embedding.fit_react,
    "klm-published": logits.fit_klm,
    "relation-published": embedding.fit_relation,
    "forensic_knn": forensic.fit_forensic_knn,
    "mahalanobis": forensic.fit_mahalanobis,
    "fused": forensic.fit_fused,
    **forensic.FITS,
}
VALIDATED = ("react-published", "klm-published", "relation-published")
"""OpenCIL's code fits these on what is held back of the newest task, and on the memory after it; the papers
fit them on training items, or on a validation set"""
HEADS: dict[str, HeadFit] = {
    "ber": fit_ber,
    "ber-published": partial(fit_ber, published=True),
    "vos": fit_vos,
    "vos-published": partial(fit_vos, published=True),
    "npos": fit_npos,
    "npos-published": partial(fit_npos, published=True),
    "logit-norm": heads.fit_logit_norm,
    "t2f-norm": heads.fit_t2f_norm,
    "augmix": augmix.fit,
    "regmixup": heads.fit_regmixup,
}
"""All as OpenCIL has them, but that "ber", "vos" and "npos" take their margins from the items; with OpenCIL's
constants they are called "published"."""

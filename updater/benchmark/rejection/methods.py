"""The post-hoc scores by name, those of the gate among them.

ODIN with its step is not among them: it reads crops instead of evidence.
"""

from updater.benchmark.rejection import (
    embedding_knn,
    forensic_knn,
    fused,
    gate_scores,
    gen,
    klm,
    mahalanobis,
    max_logit,
    msp,
    nnguide,
    odin,
    react,
    relation,
)
from updater.benchmark.rejection.evidence import Fit

POST_HOC: dict[str, Fit] = {
    "msp": msp.fit,
    "odin": odin.fit,
    "max_logit": max_logit.fit,
    "gen": gen.fit,
    "react": react.fit,
    "klm": klm.fit,
    "relation": relation.fit,
    "nnguide": nnguide.fit,
    "embedding_knn": embedding_knn.fit,
    "forensic_knn": forensic_knn.fit,
    "mahalanobis": mahalanobis.fit,
    "fused": fused.fit,
    **gate_scores.FITS,
}

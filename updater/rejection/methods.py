"""The post-hoc scores by name. odin.py is not among them: it reads crops instead of evidence."""

from updater.rejection import (
    embedding_knn,
    energy,
    forensic_knn,
    fused,
    gen,
    klm,
    mahalanobis,
    max_logit,
    msp,
    nnguide,
    novelty,
    pseudo,
    react,
    relation,
    trace_novelty,
)
from updater.rejection.evidence import Fit

POST_HOC: dict[str, Fit] = {
    "msp": msp.fit,
    "energy": energy.fit,
    "max_logit": max_logit.fit,
    "gen": gen.fit,
    "react": react.fit,
    "klm": klm.fit,
    "relation": relation.fit,
    "nnguide": nnguide.fit,
    "embedding_knn": embedding_knn.fit,
    "forensic_knn": forensic_knn.fit,
    "novelty": novelty.fit,
    "trace_novelty": trace_novelty.fit,
    "mahalanobis": mahalanobis.fit,
    "pseudo": pseudo.fit,
    "fused": fused.fit,
}

"""MaxLogit: the largest logit.

s(x) = -max_c f(x)_c, unbounded. Hendrycks et al. 2022, "Scaling out-of-distribution detection for
real-world settings".

pytorch-ood's MaxLogit agrees with the paper.
"""

from pytorch_ood.detector import MaxLogit

from updater.benchmark.rejection.evidence import Known, Score, checked, float64


def fit(known: Known) -> Score:
    """Nothing is fitted."""
    return checked(known, lambda evidence: MaxLogit.score(float64(evidence.logits)))

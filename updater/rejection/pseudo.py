"""Pseudo: the log odds of the class of pseudo-forgeries against all known classes.

s(x) = f_(K+1)(x) - log sum_(c <= K) exp(f_c(x)), in nats: the gate's K1 (detector/scores.py). It says
something only of a network that was trained with pseudo-forgeries as a K+1st class (updater/outliers).
"""

from detector.scores import pseudo_score
from updater.rejection.evidence import Known, Score, checked, float64


def fit(known: Known) -> Score:
    """Nothing is fitted."""
    return checked(known, lambda e: pseudo_score(float64(e.logits), float64(e.pseudo_logit)))

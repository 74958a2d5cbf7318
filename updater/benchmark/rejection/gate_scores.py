"""Each score of the gate alone, by the same function and the same name as in the exported graph.

The formulas and their sources are in detector/scores, one score a file.
"""

from functools import partial

from detector.model.scores import SCORES, NetworkOutput
from updater.benchmark.rejection.evidence import Evidence, Fit, Known, Score, checked, float64
from updater.benchmark.rejection.forensic import reference_of


def fit(name: str, known: Known) -> Score:
    """Fit one score of the gate on the training items, and on their reference set where it reads that.

    Raises EvidenceError where it does and the network has no forensic features, CalibrationError where it
    does and there are fewer than 10 items.
    """
    score = SCORES[name].fit(None) or SCORES[name].fit(reference_of(known))
    assert score is not None
    return checked(known, lambda evidence: score(_output(evidence)))


FITS: dict[str, Fit] = {name: partial(fit, name) for name in SCORES}


def _output(evidence: Evidence) -> NetworkOutput:
    """Return the evidence as a network's output: the logits in float64, where no two scores tie."""
    return evidence.output()._replace(
        logits=float64(evidence.logits), pseudo_logit=float64(evidence.pseudo_logit)
    )

"""Trace novelty: the gate's novelty in each group of features that sees one kind of trace, on average.

s(x) = mean over g of s_g(x), with s_g the novelty (novelty.py here) in the columns of group g alone: the
statistics of residuals, the spectrum, how evenly noise lies, and the detail along edges. A forgery that
disturbs one of these is drowned in a distance over all features. It is detector/scores.py's `trace_novelty`,
as the exported graph computes it.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from detector import scores
from updater.rejection.evidence import Evidence, Known, Score, checked
from updater.rejection.forensic import reference_of


def fit(known: Known) -> Score:
    """Fit each group's whitening and reach.

    Raises EvidenceError where the network has no forensic features, CalibrationError for fewer than 10 items.
    """
    reference = reference_of(known)
    rows, widths = torch.from_numpy(reference.traces), [int(width) for width in reference.trace_widths]
    reach = scores.trace_reach(rows, widths)

    def formula(evidence: Evidence) -> NDArray[np.float32]:
        traced = torch.from_numpy(reference.whiten_traces(evidence.features))
        of_traces: NDArray[np.float32] = scores.trace_novelty(traced, rows, reach, widths).numpy()
        return of_traces

    return checked(known, formula)

"""Forensic features in the coordinates in which the gate measures distance."""

import numpy as np

from detector.model.scores import NetworkOutput
from detector.release.reference import Reference
from updater.benchmark.rejection.evidence import EvidenceError, Known
from updater.candidate.reference_set import REFERENCE_ROWS, equal_shares, make_reference


def reference_of(known: Known) -> Reference:
    """Return the reference set that a release would get from the training items.

    It is whitened by their within-class covariance and holds 1,500 of them at most, each class having an
    equal share. Raises EvidenceError where the network has no forensic features, CalibrationError (also a
    ValueError) for fewer than 10 items.
    """
    if not known.evidence.features.shape[1]:
        raise EvidenceError("this score reads forensic features, and the network has none")
    names = [str(target) for target in known.targets]
    # A release orders a class's items by their digests. Here their order is the caller's.
    places = [f"{place:08d}" for place in range(len(names))]
    chosen = equal_shares(np.array(names), np.array(places), REFERENCE_ROWS)
    output = NetworkOutput(*(part[chosen] for part in known.evidence.output()))
    return make_reference(output, [names[i] for i in chosen], [places[i] for i in chosen])

"""The scores of the gate by name, and what each weighs. To add one is a file here and a line below."""

from dataclasses import dataclass

from detector.model.scores import embedding_novelty, energy, novelty, pseudo, trace_novelty
from detector.model.scores.score import Fit, Own, Score
from detector.release.reference import Reference


@dataclass(frozen=True)
class Entry:
    """A score as calibration takes it into a new gate."""

    fit: Fit
    weight: float
    own: Own | None = None
    """of a score that measures a distance to the reference set"""


SCORES: dict[str, Entry] = {
    "energy": Entry(energy.fit, weight=1.0),
    "pseudo": Entry(pseudo.fit, weight=1.0),
    "novelty": Entry(novelty.fit, weight=2.0, own=novelty.own),
    "embedding_novelty": Entry(embedding_novelty.fit, weight=2.0, own=embedding_novelty.own),
    "trace_novelty": Entry(trace_novelty.fit, weight=3.0, own=trace_novelty.own),
}


def fitted(reference: Reference | None) -> dict[str, Score]:
    """Return every score that can be made with this reference set, by name, in the table's order."""
    made = {name: entry.fit(reference) for name, entry in SCORES.items()}
    return {name: score for name, score in made.items() if score is not None}

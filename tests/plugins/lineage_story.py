"""Exemplars, lines of snapshots, and what a test of lineage walks over."""

from dataclasses import dataclass

import numpy as np
from exemplars import make_exemplar

from detector.records import Verdict
from detector.release.artifact import Artifact
from memory.features import FEATURE_VERSION, WIDTH
from memory.records import Split
from memory.rows import NewRow
from updater.evaluation_parts import SnapshotRow

MEDIA = "forgewatch.media"


@dataclass(frozen=True)
class Story:
    """What the tests walk over."""

    first: Artifact
    second: Artifact
    verdict: Verdict
    """by the second release"""


def exemplar(number: int, source: str, verdict: str | None = None) -> NewRow:
    """An unlabelled exemplar of a media item at this offset."""
    record = make_exemplar(number, id=f"{MEDIA}-0-{number}", source=source, group=f"group-{number}")
    return NewRow(record, 1, np.zeros(WIDTH, np.float32), FEATURE_VERSION, None, verdict)


def line(number: int, family: str, split: Split, source: str, label: int) -> SnapshotRow:
    """The line of the same exemplar in a release's snapshot."""
    return SnapshotRow(
        exemplar=f"{MEDIA}-0-{number}",
        media_digest=f"{number:064x}",
        family=family,
        split=split,
        group=f"group-{number}",
        source=source,
        label=label,
    )

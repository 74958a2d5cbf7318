"""What the walks along the lineage answer."""

from collections.abc import Mapping

from pydantic import AwareDatetime, BaseModel, Field

from deploy.release_records import LedgerEntry, Release
from detector.records import Neighbour, Verdict
from memory.records import Exemplar, LabelEntry
from updater.evaluation_parts import Measure, SnapshotRow


class VerdictRef(BaseModel, frozen=True):
    """One verdict in short."""

    id: str
    at: AwareDatetime
    label: str
    source: str
    release: str = Field(description="its short name")


class LearntLabel(BaseModel):
    """A label that a release was made of."""

    label: int
    entry: LabelEntry | None = Field(description="who gave it; null where the memory does not know it")
    items: Mapping[str, int] = Field(description="exemplars that bore it, by split")


class ReleaseLineage(BaseModel):
    """A release with what it was made of and by whom, and what it said."""

    release: Release
    history: tuple[LedgerEntry, ...] = Field(description="proposal, approvals and every other move of it")
    requested_by: str | None = Field(description="who asked for its update; null where the run is not known")
    parents: tuple[str, ...] = Field(
        description="digests of the releases that it was trained from, nearest first"
    )
    labels: tuple[LearntLabel, ...] | None = Field(
        description="the labels that its exemplars bore; null: it is from before there were snapshots"
    )
    sources: Mapping[str, Mapping[str, int]] | None = Field(description="its exemplars by source and split")
    verdicts: Mapping[str, int] = Field(description="those that the topic has, by label")
    newest: tuple[VerdictRef, ...] = Field(description="the newest of them")


class NeighbourLineage(Neighbour):
    """One of a verdict's nearest exemplars, with the label that the release learnt it by."""

    learnt: SnapshotRow | None = Field(description="its line of the snapshot; null: there is none")
    label: LabelEntry | None = Field(description="the label that it bore, and its giver; null as `learnt` is")


class VerdictLineage(BaseModel):
    """A verdict, the release that said it, and what that knew of its nearest exemplars."""

    id: str
    written: VerdictRef | None = Field(description="null where the topic has it no more, as far as is known")
    verdict: Verdict | None = Field(description="null where it cannot be read")
    taken_back: str | None = Field(
        None, description="how it was corrected or withdrawn, in one sentence; null: it was not"
    )
    problems: tuple[str, ...] = Field(description="why a part is lacking, in a line each")
    release: ReleaseLineage | None = Field(description="null for a release that this ledger does not know")
    neighbours: tuple[NeighbourLineage, ...]


class ReleaseFigures(BaseModel):
    """What a release was measured at on held-back items, as it was proposed."""

    release: Release
    figures: Mapping[Measure, float] = Field(
        description="fractions in 0..1; af, -1..1, against the release before, negative: forgotten"
    )


class Learner(BaseModel, frozen=True):
    """A release that was made of something, or goes back to one that was."""

    release: Release
    items: Mapping[str, int] = Field(description="exemplars of it in its own snapshot, by split; empty: none")
    through: str | None = Field(description="digest of the nearest parent that has it; null: it itself has")
    verdicts: Mapping[str, int] = Field(description="those that the topic has, by label")
    newest: tuple[VerdictRef, ...]


class Learners(BaseModel):
    """The releases that something went into, in the order in which they were proposed."""

    releases: tuple[Learner, ...]
    unsaid: tuple[str, ...] = Field(
        description="digests of releases whose exemplars are not known: made before there were snapshots"
    )


class LabelLineage(Learners):
    """From a label on."""

    label: LabelEntry


class SourceLineage(Learners):
    """From a source on."""

    source: str
    exemplars: Mapping[str, int] = Field(description="its items in the memory now, by shelf")
    labels: tuple[LabelEntry, ...] = Field(description="labels that its exemplars bear or bore")


class ExemplarLineage(Learners):
    """From an exemplar on."""

    id: str
    exemplar: Exemplar | None = Field(description="as it lies in the memory now; null: its row is gone")
    labels: tuple[LabelEntry, ...] = Field(description="that it bears or bore, the newest first")

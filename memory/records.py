"""The records that the memory owns: a remembered media item, an alarm, a cluster, a label, an import."""

import hashlib
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from pydantic import AwareDatetime, BaseModel, Field

Shelf = Literal["unknown", "rehearsal", "held-back", "ignored", "dropped"]
"""unknown: waits for a person. rehearsal: labelled, to train on. held-back: labelled, for calibration
and test, never trained on. ignored: a person said so. dropped: past its time, and its crops are gone."""
Split = Literal["train", "calibration", "test"]
SameBytes = Literal["refuse", "keep", "relabel"]
"""Of items whose very bytes have another class. keep: they get that one. relabel: all get the new one."""

TRAIN_SHARE, CALIBRATION_SHARE = 0.6, 0.2
IGNORE = "ignore"
"""A label that takes an item out of what is waited for, learnt and measured."""

REAL = "real"
"""The class name of media that is no forgery; every other class name is a forgery family."""

CLUSTER_LETTERS = "23456789bcdfghjkmnpqrstvwxz"
"""No vowels and nothing that looks like something else, so that an id can be read out and typed."""
CLUSTER_ID_LENGTH = 6


def is_cluster_id(text: str) -> bool:
    """Say by its form alone whether an id is a cluster's: an exemplar's has a hyphen, a cluster's none."""
    return len(text) == CLUSTER_ID_LENGTH and set(text) <= set(CLUSTER_LETTERS)


class Declared(BaseModel, frozen=True):
    """A file's declaration that a generative model made or edited it, a claim. All None: it has none."""

    declares: Literal["generated", "edited_with_ai"] | None = None
    generator: str | None = Field(None, description="the model's or software's name, as the file states it")
    signer: str | None = Field(None, description="who signed it, where the signer is trusted")
    missed: bool | None = Field(None, description="whether the pixels alone were called real")


class Exemplar(Declared):
    """One remembered item: where it is from, a person's label, on which shelf it lies.

    Its crops (uint8 RGB, (N, crop_px, crop_px, 3)) lie in the content-addressed store under
    crops_digest; its raw forensic features (float32, (F,)) in the row.
    """

    id: str = Field(description="the verdict's id, or import- and the media's SHA-256")
    media_digest: str
    crops_digest: str | None = Field(description="None once the crops were purged")
    source: str
    group: str = Field(description="near-duplicates and pieces of one photograph share a group")
    shelf: Shelf
    family: str | None = Field(description="a person's label: real or a family; None while unlabelled")
    split: Split | None = Field(description="decided by the group's hash when labelled")
    release: str | None = Field(description="the release that called it unknown; None for imports")
    unknown_score: float | None
    received_at: AwareDatetime


@dataclass(frozen=True)
class LabelledCount:
    """How many exemplars with crops bear one label, of one source, on one side of the split."""

    family: str
    source: str
    split: str
    items: int
    groups: int


ALARMS = "alarms"
"""The topic of alarms about sources that shifted, by its name after the prefix."""

MAX_ALARM_BYTES = 65_536
"""A record of the alarms topic with its key and headers: the source in both, and little else."""


class Raised(BaseModel, frozen=True):
    """What a test found of a source whose items called real have shifted."""

    at: AwareDatetime
    source: str = Field(description="as the item's: of a CloudEvent, a header or a key")
    release: str = Field(description="digest of the release that called them real")
    items: int = Field(description="items of the source called real that its test bet on")
    since: int = Field(description="of these, the newest: those since the shift most likely began")
    log_e: float = Field(description="natural logarithm of the bets' wealth: the evidence for a shift")
    log_limit: float = Field(
        description="the limit for an alarm; chance reaches it with probability exp(-log_limit) at most"
    )


class ShiftAlarm(Raised):
    """An alarm: what the test found, with the cluster of the suspects."""

    id: int = Field(description="the alarm's number in this memory")
    suspects: int = Field(description="of the items since then, those that seem least familiar")
    missing: int = Field(description="suspects whose media the topic has no more, or that cannot be read")
    cohesion: float | None = Field(
        description="p-value of the suspects' deviating in no common direction, against earlier items of the "
        "source above the same limit; small: they are of one kind; None: too few of either"
    )
    cluster: str | None = Field(description="the cluster that holds them; None where none is left")


Statistic = Literal["unknown_score", "energy", "embedding_novelty"]
"""What of a verdict is watched for drift. embedding_novelty: the embedding's distance to the release's
reference, as it enters the unknown score."""


class Drift(BaseModel, frozen=True):
    """What a test found of verdicts, of any label, of which one statistic has drifted."""

    at: AwareDatetime
    source: str | None = Field(description="None: of all sources together")
    release: str = Field(description="digest of the release whose verdicts these are")
    statistic: Statistic
    direction: Literal["higher", "lower"] = Field(description="than it was before")
    items: int = Field(description="items that the test bet on")
    since: int = Field(
        description="of the newest 200 of these, how many came since the drift most likely began"
    )
    log_e: float = Field(description="natural logarithm of the bets' wealth: the evidence for a drift")
    log_limit: float = Field(
        description="the limit for an alarm; chance reaches it with probability exp(-log_limit) at most"
    )


class DriftAlarm(Drift):
    """A drift that is on record."""

    id: int = Field(description="the alarm's number among this memory's of drift")


class Declarations(BaseModel):
    """Of a cluster's members, those that declare generation: claims of files, which anyone can write."""

    items: int
    generators: dict[str, int] = Field(description="how many name each generator; the most frequent")
    family: str = Field(description="the name that the most frequent proposes")


class ClusterSummary(BaseModel):
    """Unknowns that look alike and wait for a person."""

    id: str
    version: str = Field("", description="the version of its state; give it back with each change")
    size: int
    sources: int = Field(0, description="how many sources its items came from")
    resembles: str | None = Field(description="the known class that explains them; null where none does")
    medoid: str = Field(description="the most typical member that waits, by id")
    spread: float | None = Field(description="root mean square distance from the medoid")
    unclustered: bool = Field(description="the items that fit nowhere, of many kinds")
    alarm: ShiftAlarm | None = Field(
        None, description="items called real, of a source that has shifted, and the evidence; else null"
    )
    edit: int | None = Field(None, description="of a cluster that a person made: the edit's number")
    declared: Declarations | None = Field(None, description="null where no member declares generation")

    @property
    def declaration(self) -> str:
        """Its declarations in one sentence; empty where there is none."""
        if (of := self.declared) is None:
            return ""
        names = ", ".join(f"{name} {count}" for name, count in of.generators.items())
        return f"{of.items} of {self.size} declare{'s' * (of.items == 1)} a generative model ({names})"


class ClusterView(ClusterSummary):
    """A cluster with its members, the most typical first, then what joined it, in that order.

    version tells its states apart for `members_at_version`.
    """

    members: tuple[str, ...]


class Clustering(BaseModel):
    """How fresh the list of clusters is."""

    computed_at: AwareDatetime | None = Field(description="null before the memory has computed any")
    newer: int = Field(description="unknowns that came since and are in no cluster yet")


class ClusterMember(Exemplar):
    """A member of a cluster, with what can be shown of it."""

    crops: int = Field(description="crops that can be shown; 0 once they were purged")
    has_map: bool = Field(description="whether its verdict has a map of where it is forged")
    media_id: str | None = Field(None, exclude=True, description="the id of its event")


class ClusterMembers(BaseModel):
    """A page of a cluster's members that still wait."""

    cluster: str
    version: str = Field(description="the version of the cluster; give it back with each change")
    size: int = Field(description="of all that wait")
    offset: int
    members: list[ClusterMember]


class KnownNeighbour(BaseModel):
    """A labelled exemplar that a cluster is near to."""

    id: str
    family: str = Field(description="real or a family")
    distance: float = Field(description="root mean square over robustly scaled features, from the medoid")


class EditDone(BaseModel):
    """An edit of clusters that was put on record."""

    edit: int = Field(description="its number, by which a split or a merge can be undone")
    cluster: str = Field(description="the cluster that it made; of an undo, the one that is no more")
    items: int


class EditEntry(EditDone):
    """One line of the edits' history; what is null for an undo."""

    at: datetime
    actor: str
    what: Literal["split", "merge"] | None
    taken_from: list[str] = Field(description="the clusters that its items were in")
    undoes: int | None
    undone_by: int | None


class LabelEntry(BaseModel):
    """One line of the labels' history; what is null for an undo."""

    label: int
    at: datetime
    actor: str
    what: str | None
    undoes: int | None
    undone_by: int | None
    exemplars: int
    looked_at: int | None = Field(None, description="of these, how many were shown; null where not known")


class SkippedFile(BaseModel):
    """A file that was not imported: its path below the folder, and why, in one line."""

    path: str
    reason: str


class ImportDone(BaseModel):
    """What an import did."""

    new: dict[str, int] = Field({}, description="files that the memory did not hold, by class")
    already: int = Field(0, description="files that the memory held before, called the same")
    skipped: list[SkippedFile] = []
    labels: dict[str, int] = Field({}, description="by class, the label whose undo takes it back")
    contradicted: list[str] = Field([], description="lines on near-duplicates that are called otherwise")

    def __add__(self, other: "ImportDone") -> "ImportDone":
        """Both together, as one."""
        return ImportDone(
            new=dict(Counter(self.new) + Counter(other.new)),
            already=self.already + other.already,
            skipped=[*self.skipped, *other.skipped],
            labels=self.labels | other.labels,
            contradicted=[*self.contradicted, *other.contradicted],
        )


class BlockedEntry(BaseModel):
    """A source that is no longer remembered."""

    source: str
    at: AwareDatetime
    actor: str


class AnnotationsTaken(BaseModel):
    """What became of annotations."""

    labels: list[tuple[str, str, int]] = Field(description="annotator, family and number of each new label")
    labelled: int
    already: int = Field(description="exemplars that were called the same")
    left_out: list[str] = Field(description="a line on each that was not labelled")


def split_of(group: str) -> Split:
    """Return the side on which a group lies for ever: 60 % train, 20 % calibration, 20 % test.

    By SHA-256 of its name, so that no state and no order of arrival has a say.
    """
    share = int.from_bytes(hashlib.sha256(group.encode()).digest()[:8]) / 2**64
    if share < TRAIN_SHARE:
        return "train"
    return "calibration" if share < TRAIN_SHARE + CALIBRATION_SHARE else "test"


def shelf_of(name: str, split: Split) -> Shelf:
    """Return the shelf of an exemplar labelled `name` (a family, real or ignore)."""
    if name == IGNORE:
        return "ignored"
    return "rehearsal" if split == "train" else "held-back"

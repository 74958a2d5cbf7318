"""What the API takes and answers. Light: every client imports it."""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import AwareDatetime, BaseModel, Field, model_validator

from deploy.release_records import Because, LedgerEntry, Release
from memory.estimate.records import Accuracy
from memory.records import Exemplar, SameBytes, Shelf
from updater.records import DeclaredRecall, Power, UpdateRun

Version = Annotated[
    str | None,
    Field(max_length=40, description="the version of the cluster that you saw; without it, the current one"),
]


class RecordEntry(BaseModel):
    """One act of the record of all rooms."""

    sequence: int = Field(description="its place in the record: 1, 2, 3, … without a gap")
    at: AwareDatetime = Field(description="when it was done")
    actor: str
    action: str = Field(description="the action, in a word or two: `label`, `approve`, `revoke token`")
    subject: str = Field(description="its object: a release's digest, `label 7`, a person or a source")
    details: dict[str, Any] = Field(description="further fields, by the action")
    hash: str = Field(description="SHA-256 over this act and the hash of the one before")


class RecordHead(BaseModel):
    """Where the record ends, and what was published of it."""

    size: int = Field(description="how many acts it has")
    hash: str = Field(description="of the newest act, or the database's id where there is none")
    published: int = Field(0, description="acts of the newest head that it was compared with")
    accepted: int = Field(0, description="differences from published heads that an admin accepted")
    not_compared: str | None = Field(
        None, description="why it was not compared with its published heads: a tail that was cut may lack"
    )


class AcceptRequest(Because):
    """Which difference from the published heads is accepted, and why."""

    difference: str = Field(pattern="^[0-9]{1,12}-[0-9a-f]{16}$", description="its name, by the proof")


class LabelRequest(BaseModel):
    """Which exemplars are called what: a cluster as it was shown, or ids."""

    cluster: str | None = None
    ids: list[str] | None = Field(None, min_length=1, max_length=100_000)
    family: str = Field(description="a family's name, `real`, or `ignore`")
    version: Version = None
    same_bytes: SameBytes = Field(
        "refuse",
        description="of items whose very bytes are called another class: keep that, or relabel those",
    )
    declared: bool = Field(False, description="of a cluster, only the members that declare generation")
    looked_at: list[str] | None = Field(
        None, max_length=100_000, description="ids of the cluster's members that you were shown"
    )

    @model_validator(mode="after")
    def _one_of_both(self) -> Self:
        if (self.cluster is None) == (self.ids is None):
            raise ValueError("give a cluster or ids, not both")
        if self.cluster is not None and self.version is None:
            raise ValueError("a cluster is labelled as it was listed: give its version")
        return self


class LabelDone(BaseModel):
    """A label or an undo that was put on record."""

    label: int = Field(description="its number, by which a label can be undone")
    exemplars: int
    contradicted: list[str] = Field([], description="a line where near-duplicates are called otherwise")


class PartitionLag(BaseModel):
    """How many offsets of one partition a group has not read yet."""

    group: str
    topic: str
    partition: int
    committed: int | None = Field(description="the next offset that the group reads; None: it never read")
    end: int = Field(description="the offset after the last record, be its transaction still open")
    lag: int
    held_back: int = Field(0, description="of these, how many lie behind the begin of an open transaction")
    seconds: float | None = Field(
        None, description="age of the first record that it has not read; None: there is none, or not known"
    )


class ProcessHealth(BaseModel):
    """Whether one process answers at its metrics address, and what it says of itself there."""

    name: str
    address: str
    alive: bool
    problem: str | None = Field(None, description="why it does not answer, or its complaint")


class Shelved(BaseModel):
    """How many exemplars of one family lie on one shelf; family is null while unlabelled."""

    shelf: str
    family: str | None
    count: int


class Status(BaseModel):
    """The state of the whole loop at one moment."""

    live: Release | None
    previous: str | None = Field(description="digest that a rollback would bring back")
    proposed: list[Release] = Field(
        description="releases that wait: proposed, with findings or without, or approved and not live"
    )
    publish_problem: str | None = Field(description="why the releases topic may differ from the ledger")
    record_problem: str | None = Field(None, description="why the record's head is not on its topic")
    signatures: str = Field("", description="off, or who may sign releases and until when their keys count")
    under_way: list[str] = Field(
        [], description="a rollout, releases that are taken back, webhooks that take nothing: a sentence each"
    )
    epoch_raises: list[LedgerEntry] = Field(
        description="of one day: when and why the ledger outranked another's record on the releases topic"
    )
    lag: list[PartitionLag]
    lag_problem: str | None = Field(description="why the lag is not known")
    unknowns_waiting: int
    shelves: list[Shelved]
    updates: list[UpdateRun] = Field(description="the newest update runs, the newest first")
    due: list[datetime] = Field([], description="when the schedule's next updates come due")
    processes: list[ProcessHealth]


class ClusterDetail(BaseModel):
    """A cluster's members that still wait, the most typical first."""

    id: str
    members: list[Exemplar]


class SplitRequest(BaseModel):
    """Which members of a cluster become one of their own."""

    ids: list[str] = Field(min_length=1, max_length=100_000)
    version: Version = None


class ClusterSeen(BaseModel):
    """A cluster in the state that was seen."""

    cluster: str
    version: Version = None


class MergeRequest(BaseModel):
    """Which clusters become one."""

    clusters: list[ClusterSeen] = Field(min_length=2, max_length=1000)


class MediaDigests(BaseModel):
    """Media by the SHA-256 of its bytes, hexadecimal."""

    digests: list[Annotated[str, Field(pattern="^[0-9a-f]{64}$")]] = Field(max_length=1000)


class AccuracyReport(BaseModel):
    """How accurate a release's verdicts were in the last days, and what is not in that."""

    accuracy: Accuracy
    power: Power | None = Field(
        description="of forgeries of a family never seen, which no estimate here knows: the release's own"
        " measure of how many it would not call real; null where it has none"
    )
    declared: DeclaredRecall | None = Field(
        None,
        description="of media that declares generation, how much its pixels did not call real: an audit by"
        " files, which are no random sample; null where there was none",
    )


class AuditLabel(BaseModel):
    """What a person says of an audited item."""

    id: str = Field(min_length=1, max_length=300)
    label: str = Field(max_length=64, description="real, a family, or cannot-say")


class PurgePreview(BaseModel):
    """What a purge of a source would take."""

    source: str
    exemplars: Mapping[Shelf, int] = Field(description="its items in the memory, by shelf")
    clusters: int = Field(description="clusters that wait and show an item of it")
    releases: tuple[str, ...] = Field(
        description="digests of releases that learnt from it, or from one that did; they keep that"
    )
    unsaid: tuple[str, ...] = Field(description="digests of releases whose training data are not known")
    updates: list[int] = Field(description="updates that have begun, and would end")
    blocked: bool = Field(description="whether it is no longer remembered")
    version: str = Field(description="of this preview: give it to begin")


class PurgeRequest(BaseModel):
    """Which source is to leave."""

    source: str = Field(min_length=1, max_length=1000)
    block: bool = Field(False, description="remember nothing of it from now on")
    version: str | None = Field(None, description="the preview's, to begin; null continues the purge")


class PurgeDone(BaseModel):
    """What one request did."""

    purged: int = Field(description="exemplars that were emptied")
    left: int = Field(description="exemplars that wait for the next request")
    stopped: list[int] = Field(description="updates that ended")


class UnblockRequest(BaseModel):
    """Which source is to be remembered again."""

    source: str = Field(min_length=1, max_length=1000)

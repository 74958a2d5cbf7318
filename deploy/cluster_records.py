"""What the API answers about clusters of unknowns, and takes to edit them. Light: every client imports it."""

from datetime import datetime
from typing import Annotated, Literal

from pydantic import AwareDatetime, BaseModel, Field

from memory.records import Exemplar, ShiftAlarm

Version = Annotated[
    str | None,
    Field(max_length=40, description="the version of the cluster that you saw; without it, the current one"),
]


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


class Clustering(BaseModel):
    """How fresh the list of clusters is."""

    computed_at: AwareDatetime | None = Field(description="null before the memory has computed any")
    newer: int = Field(description="unknowns that came since and are in no cluster yet")


class ClusterDetail(BaseModel):
    """A cluster's members that still wait, the most typical first."""

    id: str
    members: list[Exemplar]


class ClusterMember(Exemplar):
    """A member of a cluster, with what can be shown of it."""

    crops: int = Field(description="crops that can be shown; 0 once they were purged")
    has_map: bool = Field(description="whether its verdict has a map of where it is forged")


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

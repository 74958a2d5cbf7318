"""The API's part about what the memory holds: clusters, contact sheets, labels."""

from datetime import UTC, datetime
from typing import Annotated

import structlog
from fastapi import APIRouter, Path
from fastapi.responses import Response

from deploy.client.records import (
    ClusterDetail,
    Clustering,
    ClusterSummary,
    LabelDone,
    LabelEntry,
    LabelRequest,
)
from deploy.server.services import Actor, Opened
from memory.clusters.review import cluster_sheet, freshness, list_clusters, members_of
from memory.labels import history, label, undo

log = structlog.get_logger()
router = APIRouter()

ClusterId = Annotated[str, Path(max_length=100, description="a cluster's id from /clusters")]


@router.get("/clusters", tags=["memory"])
def get_clusters(services: Opened) -> list[ClusterSummary]:
    """The clusters of unknowns that wait, as the memory last computed them; `/clustering` says when.

    What an id shows stays that for a day after it left the list, so that a label means what its giver saw.
    """
    return [
        ClusterSummary(
            id=one.id,
            size=len(one.members),
            resembles=one.resembles,
            medoid=one.members[0],
            spread=one.spread,
            unclustered=one.unclustered,
            alarm=one.alarm,
        )
        for one in list_clusters(services.memory)
    ]


@router.get("/clustering", tags=["memory"])
def get_clustering(services: Opened) -> Clustering:
    """How fresh the list of clusters is."""
    found = freshness(services.memory)
    return Clustering(computed_at=found.computed_at, newer=found.newer)


@router.get("/clusters/{cluster}", tags=["memory"])
def get_cluster(services: Opened, cluster: ClusterId) -> ClusterDetail:
    """A cluster as it was shown: its members that still wait, the most typical first."""
    return ClusterDetail(id=cluster, members=members_of(services.memory, cluster))


@router.get("/clusters/{cluster}/sheet.png", tags=["memory"], response_class=Response)
def get_sheet(services: Opened, cluster: ClusterId) -> Response:
    """A cluster's contact sheet: crops of its members at native resolution, as one PNG."""
    return Response(cluster_sheet(services.memory, services.crops, cluster), media_type="image/png")


@router.post("/labels", tags=["memory"], status_code=201)
def add_label(services: Opened, actor: Actor, body: LabelRequest) -> LabelDone:
    """Call exemplars a family, `real` or `ignore`: all of them or none.

    409 where the name is none, or crops were purged; 404 for an unknown cluster or id.
    """
    if body.cluster is not None:
        ids = [exemplar.id for exemplar in members_of(services.memory, body.cluster)]
    else:
        ids = list(dict.fromkeys(body.ids or []))
    number = label(services.memory, ids, body.family, actor)
    log.info("labelled", label=number, family=body.family, exemplars=len(ids), actor=actor)
    return LabelDone(label=number, exemplars=len(ids))


@router.post("/labels/{number}/undo", tags=["memory"], status_code=201)
def undo_label(services: Opened, actor: Actor, number: int) -> LabelDone:
    """Bring the exemplars of a label back to what they were; 409 where a later label holds one of them."""
    undoing = undo(services.memory, number, actor)
    log.info("label undone", label=number, undo=undoing, actor=actor)
    (entry,) = (entry for entry in history(services.memory) if entry.id == undoing)
    return LabelDone(label=undoing, exemplars=entry.exemplars)


@router.get("/labels", tags=["memory"])
def list_labels(services: Opened) -> list[LabelEntry]:
    """Who called what what and when, and what was undone, the newest first."""
    return [
        LabelEntry(
            label=entry.id,
            at=datetime.fromtimestamp(entry.at_ms / 1000, UTC),
            actor=entry.actor,
            what=entry.what,
            undoes=entry.undoes,
            undone_by=entry.undone_by,
            exemplars=entry.exemplars,
        )
        for entry in history(services.memory)
    ]

"""The API's part about clusters: the list, their members in pages and pictures, split, merge, undo."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import Annotated

import structlog
from fastapi import APIRouter, HTTPException, Path, Query
from fastapi.responses import Response
from pydantic import StringConstraints

from deploy.access.guard import Actor, GuardedRoute
from deploy.access.roles import least
from deploy.records import ClusterDetail, MergeRequest, SplitRequest
from deploy.releases.artifacts import StoreError
from deploy.releases.evidence import EvidenceError
from deploy.releases.standing import replay
from deploy.server.pictures import View, forgery_map, pixels, residual
from deploy.server.services import Opened, Services
from detector.records import Verdict
from detector.release.artifact import version_of
from detector.release.crop_graphs import map_problem
from memory.clusters.pages import Order, page_in_order, page_of, views_of
from memory.clusters.review import cluster_sheet, freshness, list_clusters, members_of
from memory.clusters.similarity import nearest_known
from memory.clusters.views import edit_history, load_cluster
from memory.declarations import missed_exemplars
from memory.records import (
    Clustering,
    ClusterMembers,
    ClusterSummary,
    EditDone,
    EditEntry,
    Exemplar,
    KnownNeighbour,
)

log = structlog.get_logger()
router = APIRouter(tags=["clusters"], route_class=GuardedRoute)

_SHOWN_S = 300
"""Seconds that a browser keeps a picture: what is purged is gone from it as well."""
MAX_LABEL_BYTES = 2**24
"""Of the ids of 100,000 exemplars."""

ClusterId = Annotated[str, Path(max_length=100, description="a cluster's id from /clusters")]
ExemplarId = Annotated[str, Path(max_length=300, description="an exemplar's id")]
MAX_MARKS = 50
"""Of ids of 300 characters, as many fit into an address."""
Mark = Annotated[str, StringConstraints(max_length=300)]
Marks = Annotated[
    list[Mark], Query(min_length=1, max_length=MAX_MARKS, description="ids of members that a person marked")
]
Offset = Annotated[int, Query(ge=0, description="members before the page")]
Limit = Annotated[int, Query(ge=1, le=1000, description="most members of the page")]


@router.get("/clusters", openapi_extra=least("viewer"))
def get_clusters(services: Opened) -> Sequence[ClusterSummary]:
    """The clusters of unknowns that wait, as the memory last computed them; `/clustering` says when.

    Suspects of alarms come first, then what people made. What a computed id shows stays that for a day after
    it left the list, so that a label means what its giver saw.
    """
    return list_clusters(services.memory)


@router.get("/clustering", openapi_extra=least("viewer"))
def get_clustering(services: Opened) -> Clustering:
    """How fresh the list of clusters is."""
    return freshness(services.memory)


@router.get("/misses", openapi_extra=least("viewer"))
def get_misses(services: Opened, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> list[Exemplar]:
    """Waiting items that the pixels called real, whose files declare a generative model; the newest first.

    A declaration is a claim. Name them by their ids in `/labels`; of each source a sample is kept.
    """
    with services.memory.read() as connection:
        return missed_exemplars(connection, limit)


@router.get("/clusters/{cluster}", openapi_extra=least("viewer"))
def get_cluster(services: Opened, cluster: ClusterId) -> ClusterDetail:
    """A cluster as it was shown: its members that still wait, the most typical first; all at once."""
    return ClusterDetail(id=cluster, members=members_of(services.memory, cluster))


@router.get("/clusters/{cluster}/members", openapi_extra=least("viewer"))
def get_members(
    services: Opened,
    cluster: ClusterId,
    order: Order = "typical",
    seed: Annotated[int, Query(description="of the random order")] = 0,
    offset: Offset = 0,
    limit: Limit = 48,
) -> ClusterMembers:
    """A page of a cluster's members that still wait, with what can be shown of each."""
    return page_of(services.memory, cluster, order, offset, limit, seed)


@router.get("/clusters/{cluster}/alike", openapi_extra=least("viewer"))
def get_alike(
    services: Opened, cluster: ClusterId, to: Marks, offset: Offset = 0, limit: Limit = 48
) -> ClusterMembers:
    """A page of a cluster's members: the marked first, then the others, the likest to the marked first.

    Five marks are enough. 409 where none of them waits in the cluster, 503 while the index is being read.
    """
    from memory.clusters.similarity import alike  # scikit-learn takes a second to load

    with services.memory.read() as connection:
        view = load_cluster(connection, cluster)
    ids = alike(services.memory, services.shared_index, view.members, to)
    with services.memory.read() as connection:
        return page_in_order(connection, view, ids, offset, limit)


@router.get("/clusters/{cluster}/nearest", openapi_extra=least("viewer"))
def get_nearest(
    services: Opened, cluster: ClusterId, limit: Annotated[int, Query(ge=1, le=100)] = 6
) -> list[KnownNeighbour]:
    """The labelled exemplars nearest to a cluster's most typical member, the nearest first.

    503 while the index is being read.
    """
    with services.memory.read() as connection:
        waiting = load_cluster(connection, cluster).members
    return nearest_known(services.memory, services.shared_index, waiting, limit)


@router.get("/clusters/{cluster}/sheet.png", response_class=Response, openapi_extra=least("viewer"))
def get_sheet(services: Opened, cluster: ClusterId) -> Response:
    """A cluster's contact sheet: crops of its members at native resolution, as one PNG."""
    return Response(cluster_sheet(services.memory, services.crops, cluster), media_type="image/png")


@router.get("/exemplars/{exemplar}/picture.png", response_class=Response, openapi_extra=least("viewer"))
def get_picture(
    services: Opened,
    exemplar: ExemplarId,
    view: View = "pixels",
    crop: Annotated[int, Query(ge=0, le=10_000, description="which crop, from 0; a map has none")] = 0,
) -> Response:
    """A crop at native resolution, its residual, or the map of where the item is forged, as a PNG made here.

    404 where the exemplar, its crops or its map are not there; 409 where the crops are damaged.
    """
    verdict, views = views_of(services.memory, services.crops, exemplar)
    match view:
        case "pixels":
            png = pixels(views, crop)
        case "residual":
            png = residual(views, crop)
        case "map":
            said_by = [Verdict.model_validate_json(verdict).release] if verdict else []
            if problem := no_maps(services, said_by):
                raise HTTPException(404, problem)
            png = forgery_map(views, verdict)
    return Response(png, media_type="image/png", headers={"cache-control": f"private, max-age={_SHOWN_S}"})


def no_maps(services: Services, versions: Collection[str]) -> str | None:
    """Why maps of verdicts by these releases are not shown, as of older ones; None: they are."""
    for digest, release in replay(services.ledger.events()).releases.items():
        if version_of(digest) in map(version_of, versions):
            with suppress(EvidenceError, StoreError):
                marked = services.evaluations.of(release).reals_marked
                if marked and (problem := map_problem(marked.share)):
                    return problem
    return None


@router.post(
    "/clusters/{cluster}/split",
    status_code=201,
    max_body_size=MAX_LABEL_BYTES,
    openapi_extra=least("reviewer"),
)
def split_cluster(services: Opened, actor: Actor, cluster: ClusterId, body: SplitRequest) -> EditDone:
    """Make selected members a cluster of their own, which is never computed anew; new items may join it.

    409 where the cluster changed since that version was seen, and who changed it.
    """
    from memory.clusters.edits import split  # scikit-learn takes a second to load

    done = split(services.memory, cluster, body.ids, actor, body.version)
    log.info(
        "cluster split", edit=done.edit, cluster=cluster, made=done.cluster, items=done.items, actor=actor
    )
    return done


@router.post("/merges", status_code=201, openapi_extra=least("reviewer"))
def merge_clusters(services: Opened, actor: Actor, body: MergeRequest) -> EditDone:
    """Make one cluster of several; 409 where one changed since that version was seen, and who changed it."""
    from memory.clusters.edits import merge

    done = merge(services.memory, [(part.cluster, part.version) for part in body.clusters], actor)
    log.info("clusters merged", edit=done.edit, made=done.cluster, items=done.items, actor=actor)
    return done


@router.get("/edits", openapi_extra=least("viewer"))
def list_edits(services: Opened) -> list[EditEntry]:
    """Who split and merged what and when, and what was undone, the newest first."""
    return edit_history(services.memory)


@router.post("/edits/{number}/undo", status_code=201, openapi_extra=least("reviewer"))
def undo_edit(services: Opened, actor: Actor, number: int) -> EditDone:
    """Put the items of a split or a merge back; 409 where a later edit holds some of them."""
    from memory.clusters.edits import undo_edit

    done = undo_edit(services.memory, number, actor)
    log.info("edit undone", edit=number, undo=done.edit, actor=actor)
    return done

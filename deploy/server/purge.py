"""The API on sources that leave the memory, and on those that are no longer remembered."""

import hashlib
import json

import structlog
from fastapi import APIRouter, HTTPException, Request

from deploy.access.guard import Actor, GuardedRoute
from deploy.access.roles import least
from deploy.lineage import onward
from deploy.records import PurgeDone, PurgePreview, PurgeRequest, UnblockRequest
from deploy.server.lineage import SourceName, ground
from deploy.server.services import Opened
from memory.purge import begin, holding, purge_batch
from memory.records import BlockedEntry
from memory.sources import list_blocked, unblock

log = structlog.get_logger()
router = APIRouter(route_class=GuardedRoute)

_ROWS_A_REQUEST = 5000


@router.get("/memory/purge", tags=["memory"], openapi_extra=least("viewer"))
def preview_purge(request: Request, services: Opened, source: SourceName) -> PurgePreview:
    """What a purge of a source would take, and which releases learnt from it."""
    with services.memory.read() as connection:
        held = holding(connection, source)
    learners = onward.learners(ground(request, services), lambda _, made: made.sources.get(source, {}))
    releases = tuple(learner.release.digest for learner in learners["releases"])
    begun = [
        run.id for run in services.runs.newest() if run.state in ("queued", "running") and run.started_at
    ]
    bound = {name: held.shelves.get(name, 0) for name in ("rehearsal", "held-back", "ignored")}
    version = hashlib.sha256(json.dumps([source, bound, releases]).encode()).hexdigest()
    return PurgePreview(
        source=source,
        exemplars=held.shelves,
        clusters=held.clusters,
        releases=releases,
        unsaid=learners["unsaid"],
        updates=begun if held.labelled_count else [],
        blocked=held.blocked,
        version=version,
    )


@router.post("/memory/purge", tags=["memory"], openapi_extra=least("admin"))
def purge(request: Request, services: Opened, actor: Actor, body: PurgeRequest) -> PurgeDone:
    """Purge a source, some thousand rows a request: ask again until none is left.

    With a version it begins: the act goes on record, and updates that have begun end as refused, where the
    memory holds labelled items of the source. 409 where it holds other ones than that version showed.
    """
    stopped: list[int] = []
    if body.version is not None:
        if body.version != preview_purge(request, services, body.source).version:
            raise HTTPException(409, "this source's items in the memory have changed: preview again")
        with services.memory.write() as connection:
            held = holding(connection, body.source)
            begin(connection, held, actor, blocks=body.block)
        if held.labelled_count:
            stopped = services.runs.refuse(f"the source {body.source!r} was purged: ask for another")
        log.info("purge began", source=body.source, exemplars=held.shelves, actor=actor, stopped=stopped)
    purged, left = purge_batch(services.memory, services.crops, body.source, _ROWS_A_REQUEST)
    return PurgeDone(purged=purged, left=left, stopped=stopped)


@router.get("/memory/blocked", tags=["memory"], openapi_extra=least("viewer"))
def get_blocked(services: Opened) -> list[BlockedEntry]:
    """Every source that is no longer remembered, the newest first."""
    with services.memory.read() as connection:
        return list_blocked(connection)


@router.post("/memory/unblock", tags=["memory"], status_code=204, openapi_extra=least("admin"))
def unblock_source(services: Opened, actor: Actor, body: UnblockRequest) -> None:
    """Remember a source again; 409 where it is not blocked."""
    with services.memory.write() as connection:
        unblock(connection, body.source, actor)

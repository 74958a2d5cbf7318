"""The API on the record: who did what, when, in every room."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import AwareDatetime

from deploy.access.guard import GuardedRoute
from deploy.access.roles import least
from deploy.records import RecordEntry, RecordHead
from deploy.server.services import Opened

router = APIRouter(route_class=GuardedRoute)


@router.get("/record/proof", tags=["record"], openapi_extra=least("viewer"))
def prove_record(services: Opened) -> RecordHead:
    """Prove every act anew, from the first; 503 names the first that is not as it was written."""
    services.memory_acts.bring_in()
    head = services.record.prove_whole()
    return RecordHead(size=head.size, hash=head.hash)


@router.get("/record", tags=["record"], openapi_extra=least("viewer"))
def list_record(
    services: Opened,
    limit: Annotated[int, Query(ge=1, le=1000, description="at most so many acts")] = 100,
    before: Annotated[
        int | None,
        Query(ge=1, description="only acts before this one: the next page's, by the last sequence"),
    ] = None,
    actor: Annotated[str | None, Query(max_length=200, description="only what this one did")] = None,
    action: Annotated[str | None, Query(max_length=40, description="only acts of this kind")] = None,
    since: Annotated[
        AwareDatetime | None, Query(description="only what was done at this time or later")
    ] = None,
) -> list[RecordEntry]:
    """Every act of every room, the newest first: moves, labels, undo, imports, tokens, logins, …"""
    services.memory_acts.bring_in()
    return services.record.entries(limit, before=before, actor=actor, action=action, since=since)

"""The API on the record: who did what, when, in every room."""

from itertools import takewhile
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import AwareDatetime

from deploy.access.guard import Actor, GuardedRoute
from deploy.access.roles import least
from deploy.record.chain import BrokenChainError
from deploy.record.heads import compare, newest_of
from deploy.records import AcceptRequest, RecordEntry, RecordHead
from deploy.server.services import Opened
from ingest.kafka.topics import TopicError

router = APIRouter(route_class=GuardedRoute)


@router.get("/record/proof", tags=["record"], openapi_extra=least("viewer"))
def prove_record(services: Opened) -> RecordHead:
    """Prove every act anew, from the first, and compare the record with what was published of it.

    503 names the first row that is not as it was written.
    """
    services.memory_acts.bring_in()
    try:
        heads, not_compared = services.heads.read(), None
    except TopicError as error:
        heads, not_compared = [], str(error)
    # A move and its act are one transaction: what is on record later has all that the ledger has now.
    rows = services.ledger.prove_whole()
    head, moves = services.record.prove_whole()
    compare(services.record, heads)
    if len(moves) > len(rows):
        rows += [event.hash for event in services.ledger.events()[len(rows) : len(moves)]]
    if rows != moves:
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(rows, moves, strict=False)))
        raise BrokenChainError("ledger", same + 1, "is not the one that is on record")
    newest, no_head = newest_of(services.record, heads), "its topic has no head of it: it was made anew,"
    if newest is None and head.size:
        not_compared = not_compared or f"{no_head} or nothing is published yet"
    return RecordHead(
        size=head.size,
        hash=head.hash,
        published=newest.size if newest else 0,
        accepted=sum(bool(published.settles) for published in heads),
        not_compared=not_compared,
    )


@router.post("/record/accept", status_code=204, tags=["record"], openapi_extra=least("admin"))
def accept_difference(services: Opened, actor: Actor, body: AcceptRequest) -> None:
    """Put on record that the record differs from its published heads, and why; it is published again then.

    409 where another difference than the one that you saw is there, or none.
    """
    services.heads.accept(actor, body.difference, body.reason)


@router.get("/record", tags=["record"], openapi_extra=least("viewer"))
def list_record(
    services: Opened,
    limit: Annotated[int, Query(ge=1, le=1000, description="at most so many acts")] = 100,
    before: Annotated[
        int | None,
        Query(ge=1, description="only acts before this one: the next page's, by the last sequence"),
    ] = None,
    actor: Annotated[str | None, Query(max_length=200, description="only acts of this actor")] = None,
    action: Annotated[str | None, Query(max_length=40, description="only acts of this kind")] = None,
    since: Annotated[AwareDatetime | None, Query(description="only acts at this time or later")] = None,
) -> list[RecordEntry]:
    """Every act of every room, the newest first: moves, labels, undo, imports, tokens, logins, …"""
    services.memory_acts.bring_in()
    return services.record.entries(limit, before=before, actor=actor, action=action, since=since)

"""The API on how accurate verdicts are: the estimate, and the audit that corrects it."""

import time
from contextlib import suppress
from typing import Annotated

import structlog
from fastapi import APIRouter, HTTPException, Query

from deploy.access.guard import Actor, GuardedRoute
from deploy.access.roles import least
from deploy.records import AccuracyReport, AuditLabel
from deploy.releases.artifacts import StoreError
from deploy.releases.evidence import EvidenceError
from deploy.releases.standing import replay
from deploy.server.services import Opened
from memory.estimate.accuracy import accuracy
from memory.estimate.audits import label_audit, waiting
from memory.estimate.records import KEPT_DAYS, AuditDone, AuditItem
from memory.records import REAL
from updater.intervals import declared_recall
from updater.records import Power

log = structlog.get_logger()
router = APIRouter(tags=["accuracy"], route_class=GuardedRoute)

Days = Annotated[int, Query(ge=1, le=KEPT_DAYS, description="today and so many days before, less one; UTC")]
Digest = Annotated[
    str | None, Query(pattern="^[0-9a-f]{64}$", description="a release; without it the live one")
]


@router.get("/accuracy", openapi_extra=least("viewer"))
def get_accuracy(services: Opened, release: Digest = None, days: Days = 7) -> AccuracyReport:
    """The share of right verdicts, over all, by class and by source; 404 where no release is live."""
    standing = replay(services.ledger.events())
    measured = standing.live if release is None else standing.releases.get(release)
    if measured is None:
        raise HTTPException(
            404, "no release is live" if release is None else f"there is no release {release}"
        )
    power: Power | None = None
    with suppress(StoreError, EvidenceError):
        power = services.evaluations.of(measured).after.power
    with services.memory.read() as connection:
        estimated = accuracy(connection, measured.digest, time.time_ns() // 10**6, days)
    of, items = estimated.declared, sum(estimated.declared.values())
    declared = declared_recall(items - of.get(REAL, 0), items)
    return AccuracyReport(accuracy=estimated, power=power, declared=declared)


@router.get("/audits", openapi_extra=least("reviewer"))
def list_audits(services: Opened, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> list[AuditItem]:
    """The drawn verdicts that wait for a label, the oldest first. What they say is not told."""
    with services.memory.read() as connection:
        return waiting(connection, limit)


@router.post("/audits", status_code=201, openapi_extra=least("reviewer"))
def audit(services: Opened, actor: Actor, body: AuditLabel) -> AuditDone:
    """Say what a drawn item is; tells what was said. A later label replaces one of less than a week.

    409 where it was not drawn, is called that already, or was first labelled a week ago.
    """
    done = label_audit(services.memory, body.id, body.label, actor)
    log.info("audited", item=done.id, label=done.label, actor=actor)
    return done

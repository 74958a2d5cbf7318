"""The API on lineage: from verdicts back to people, from labels on to verdicts; and figures over releases."""

from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from typing import Annotated

from fastapi import APIRouter, Depends, Path, Query, Request

from deploy.access.guard import GuardedRoute
from deploy.access.roles import least
from deploy.lineage import back, onward
from deploy.lineage.onward import Ground
from deploy.lineage.records import (
    ExemplarLineage,
    LabelLineage,
    ReleaseFigures,
    ReleaseLineage,
    SourceLineage,
    VerdictLineage,
)
from deploy.release_records import LedgerEntry, Release
from deploy.releases.artifacts import StoreError
from deploy.releases.evidence import EvidenceError
from deploy.releases.standing import replay
from deploy.server.releases import Digest, entry
from deploy.server.services import Opened, Services
from deploy.settings import DeploySettings

router = APIRouter(route_class=GuardedRoute)


def ground(request: Request, services: Opened) -> Ground:
    """All that a walk reads (a FastAPI dependency)."""
    settings: DeploySettings = request.app.state.settings
    events = services.ledger.events()
    history: dict[str, list[LedgerEntry]] = defaultdict(list)
    for event in events:
        history[event.move.digest].append(entry(event))
    return Ground(
        releases=replay(events).releases,
        history={digest: tuple(entries) for digest, entries in history.items()},
        artifacts=services.artifacts,
        evaluations=services.evaluations,
        memory=services.memory,
        runs=services.runs,
        ingest=services.ingest,
        kafka_timeout_s=settings.kafka_timeout_s,
    )


Here = Annotated[Ground, Depends(ground)]
Id = Annotated[str, Path(max_length=300)]
SourceName = Annotated[str, Query(min_length=1, max_length=1000, description="as the stream has it")]


@router.get("/lineage/verdicts/{id_}", tags=["lineage"], openapi_extra=least("viewer"))
def get_verdict(here: Here, id_: Id) -> VerdictLineage:
    """A verdict with its release, the approvals, the nearest exemplars, their labels and who gave them.

    Its id is topic-partition-offset of the item. 404 where no such verdict is known.
    """
    return back.of_verdict(here, id_)


@router.get("/lineage/releases/{digest}", tags=["lineage"], openapi_extra=least("viewer"))
def get_release_lineage(here: Here, digest: Digest) -> ReleaseLineage:
    """A release with its approvals, the labels and sources that it was made of, and its verdicts."""
    return back.of_release(here, digest)


@router.get("/lineage/labels/{number}", tags=["lineage"], openapi_extra=least("viewer"))
def get_label(here: Here, number: int) -> LabelLineage:
    """A label, the releases that it went into, and what those said."""
    return onward.of_label(here, number)


@router.get("/lineage/sources", tags=["lineage"], openapi_extra=least("viewer"))
def get_source(here: Here, source: SourceName) -> SourceLineage:
    """A source, the releases that its exemplars went into, and what those said."""
    return onward.of_source(here, source)


@router.get("/lineage/exemplars/{id_}", tags=["lineage"], openapi_extra=least("viewer"))
def get_exemplar(here: Here, id_: Id) -> ExemplarLineage:
    """An exemplar, its labels, the releases that it went into, and what those said."""
    return onward.of_exemplar(here, id_)


@router.get("/figures", tags=["releases"], openapi_extra=least("viewer"))
def list_figures(services: Opened) -> list[ReleaseFigures]:
    """What each release was measured at (aa, af and the others), in the order in which they were proposed.

    Without those whose evaluation cannot be read, or is not the one that was proposed.
    """
    return figures_of(services, replay(services.ledger.events()).releases.values())


def figures_of(services: Services, releases: Iterable[Release]) -> list[ReleaseFigures]:
    """What some releases were measured at; without those whose evaluation cannot be read."""
    rows = []
    for release in releases:
        with suppress(StoreError, EvidenceError):
            measured = dict(services.evaluations.figures_of(release))
            rows.append(ReleaseFigures(release=release, figures=measured))
    return rows

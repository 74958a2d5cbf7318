"""Sources: what each one sends, what it is called, and where it has shifted."""

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import HTMLResponse

from deploy.access.guard import GuardedRoute
from deploy.access.roles import least
from deploy.lineage import onward
from deploy.lineage.ground import Ground
from deploy.page.visit import show
from deploy.server.lineage import SourceName, ground
from deploy.server.services import Opened
from memory.sources import LATELY, list_sources

router = APIRouter(route_class=GuardedRoute)

_SHOWN = 100


@router.get("/page/sources", response_class=HTMLResponse, openapi_extra=least("viewer"))
def get_sources(
    request: Request, services: Opened, page: Annotated[int, Query(ge=1, le=10**6)] = 1
) -> HTMLResponse:
    """A page of sources: those with alarms first, then those with most unknown items."""
    with services.memory.read() as connection:
        sources = list_sources(connection)
    context = {
        "sources": sources[(page - 1) * _SHOWN : page * _SHOWN],
        "count": len(sources),
        "lately": LATELY,
        "page": page,
        "of": -(-len(sources) // _SHOWN),
    }
    return show(request, services, "sources.html.j2", "Sources", context)


@router.get("/page/source", response_class=HTMLResponse, openapi_extra=least("viewer"))
def get_source(
    request: Request,
    services: Opened,
    here: Annotated[Ground, Depends(ground)],
    name: SourceName,
) -> HTMLResponse:
    """One source: its exemplars, its labels, and the releases that learnt from it."""
    try:
        found = onward.of_source(here, name)
    except onward.UnknownLineageError:
        found = None  # all that it sent was called real, or is gone
    context = {"name": name, "found": found}
    return show(request, services, "source.html.j2", "Sources", context)

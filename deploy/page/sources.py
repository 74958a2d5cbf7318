"""Sources: the items of each, their labels, and their shifts."""

from typing import Annotated

from fastapi import APIRouter, Depends, Form, Query, Request
from fastapi.responses import HTMLResponse

from deploy.access.guard import Actor, GuardedRoute
from deploy.access.roles import least
from deploy.lineage import onward
from deploy.lineage.onward import Ground
from deploy.page.visit import show
from deploy.records import PurgeRequest
from deploy.server import purge as api
from deploy.server.lineage import SourceName, ground
from deploy.server.services import Opened
from memory.shift.drift import list_drifts
from memory.sources import LATELY, list_sources

router = APIRouter(route_class=GuardedRoute)

_SHOWN = 100
_DRIFTS = 20
"""newest alarms of drift"""


@router.get("/page/sources", response_class=HTMLResponse, openapi_extra=least("viewer"))
def get_sources(
    request: Request, services: Opened, page: Annotated[int, Query(ge=1, le=10**6)] = 1
) -> HTMLResponse:
    """A page of sources: those with alarms first, then those with most unknown items."""
    with services.memory.read() as connection:
        sources, drifts = list_sources(connection), list_drifts(connection, _DRIFTS)
    context = {
        "sources": sources[(page - 1) * _SHOWN : page * _SHOWN],
        "count": len(sources),
        "drifts": drifts[::-1],
        "lately": LATELY,
        "page": page,
        "of": -(-len(sources) // _SHOWN),
    }
    return show(request, services, "sources.html.j2", "Sources", context)


@router.get("/page/source", response_class=HTMLResponse, openapi_extra=least("viewer"))
def get_source(
    request: Request, services: Opened, here: Annotated[Ground, Depends(ground)], name: SourceName
) -> HTMLResponse:
    """One source: its exemplars, its labels, and the releases that learnt from it."""
    try:
        lineage = onward.of_source(here, name)
    except onward.UnknownLineageError:
        lineage = None  # all that it sent was called real, or is gone
    context = {"name": name, "lineage": lineage}
    return show(request, services, "source.html.j2", "Sources", context)


@router.get("/page/source/purge", response_class=HTMLResponse, openapi_extra=least("admin"))
def look_at_purge(request: Request, services: Opened, name: SourceName) -> HTMLResponse:
    """What would go if this source were purged, and a form that does it."""
    return _purge(request, services, name, None)


@router.post("/page/source/purge", response_class=HTMLResponse, openapi_extra=least("admin"))
def purge(
    request: Request,
    services: Opened,
    actor: Actor,
    name: Annotated[str, Form(min_length=1, max_length=1000)],
    version: Annotated[str, Form(max_length=64)],
    block: Annotated[bool, Form()] = False,
) -> HTMLResponse:
    """Purge what the form showed; where much is left, the form goes on."""
    done = api.purge(request, services, actor, PurgeRequest(source=name, block=block, version=version))
    left = f", {done.left} are left: go on" if done.left else ""
    return _purge(request, services, name, f"{done.purged} items were purged{left}.")


def _purge(request: Request, services: Opened, name: str, done: str | None) -> HTMLResponse:
    context = {"preview": api.preview_purge(request, services, name), "notice": done}
    return show(request, services, "purge.html.j2", "Sources", context)

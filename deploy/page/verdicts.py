"""Verdicts: one by its id, with its pictures, its scores in words, and who it rests on."""

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Depends, HTTPException, Path, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from deploy.access.guard import GuardedRoute
from deploy.access.roles import least
from deploy.lineage import back
from deploy.lineage.ground import Ground
from deploy.page.cluster import LOOKS, picture_of
from deploy.page.visit import show
from deploy.server.lineage import ground
from deploy.server.pictures import timeline
from deploy.server.services import Opened, Services
from detector.records import Verdict
from memory.clusters.pages import members
from memory.rows import UnknownExemplarError

router = APIRouter(route_class=GuardedRoute)


@router.get("/page/verdicts", response_class=Response, openapi_extra=least("viewer"))
def find(request: Request, services: Opened, id: Annotated[str, Query(max_length=300)] = "") -> Response:
    """The form that finds a verdict by its id."""
    if id.strip():
        return RedirectResponse(f"/page/verdicts/{quote(id.strip(), safe='')}", 303)
    return show(request, services, "verdicts.html.j2", "Verdicts", {})


@router.get("/page/verdicts/{id_}", response_class=HTMLResponse, openapi_extra=least("viewer"))
def get_verdict(
    request: Request,
    services: Opened,
    here: Annotated[Ground, Depends(ground)],
    id_: Annotated[str, Path(max_length=300)],
) -> HTMLResponse:
    """One verdict, from its pictures back to the people whose labels it rests on."""
    found = back.of_verdict(here, id_)
    context: dict[str, Any] = {
        "found": found,
        "verdict": found.verdict,
        "pictures": _pictures(services, id_),
        "parts": parts_of(found.verdict) if found.verdict else [],
        "neighbours": [(near, picture_of(near.exemplar)) for near in found.neighbours],
    }
    return show(request, services, "verdict.html.j2", "Verdicts", context)


@router.get("/page/verdicts/{id_}/timeline.png", response_class=Response, openapi_extra=least("viewer"))
def get_timeline(
    here: Annotated[Ground, Depends(ground)], id_: Annotated[str, Path(max_length=300)]
) -> Response:
    """When a video is forged, as its scan says, as a PNG made here."""
    found = back.of_verdict(here, id_)
    if found.verdict is None:
        raise HTTPException(404, "; ".join(found.problems))
    return Response(timeline(found.verdict), media_type="image/png", headers={"cache-control": "no-store"})


def parts_of(verdict: Verdict) -> list[tuple[str, float]]:
    """What each score adds to the unknown score, the largest first."""
    return sorted((verdict.unknown_parts or {}).items(), key=lambda part: -abs(part[1]))


def _pictures(services: Services, id_: str) -> list[tuple[str, str]]:
    """What the memory can show of the item: of unknown and labelled ones alone it keeps crops."""
    try:
        with services.memory.read() as connection:
            (member,) = members(connection, [id_])
    except UnknownExemplarError:
        return []
    if not member.crops:
        return []
    return [(title, picture_of(id_, look)) for look, title in LOOKS if look != "map" or member.has_map]

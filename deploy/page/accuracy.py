"""Accuracy: the share of right verdicts as the audit estimates it; and the audit, as pictures to label."""

from typing import Annotated, Any
from urllib.parse import quote

from fastapi import APIRouter, Form, HTTPException, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from deploy.access.guard import GuardedRoute
from deploy.access.roles import least
from deploy.page.releases import given_as
from deploy.page.visit import show, visitor
from deploy.records import AuditLabel
from deploy.releases.standing import replay
from deploy.server import accuracy as api
from deploy.server import pictures
from deploy.server.pictures import NoPictureError
from deploy.server.services import Opened, Services
from memory.estimate.audits import CANNOT_SAY, OPEN_DAYS, drawn_media, newest_audited
from memory.records import REAL

router = APIRouter(route_class=GuardedRoute)

PERIODS = (1, 7, 28, 90)
"""days that can be chosen"""


@router.get("/page/accuracy", response_class=HTMLResponse, openapi_extra=least("viewer"))
def get_accuracy(
    request: Request, services: Opened, release: api.Digest = None, days: api.Days = 7
) -> HTMLResponse:
    """How accurate a release was in the last days; of the live one, unless said otherwise."""
    known = release is not None or replay(services.ledger.events()).live is not None
    context = {
        "report": api.get_accuracy(services, release, days) if known else None,
        "days": days,
        "periods": PERIODS,
        "of": f"release={release}&" if release else "",
        "weekly": services.memory_settings.audit_items,
    }
    return show(request, services, "accuracy.html.j2", "Accuracy", context)


_TILES, _DONE = 12, 12
"""shown at once: what waits, and what was labelled last"""
_SHOWN_S = 60
"""that a browser keeps a picture"""


@router.get("/page/audit", response_class=HTMLResponse, openapi_extra=least("reviewer"))
def get_audit(request: Request, services: Opened) -> HTMLResponse:
    """What was drawn and waits, the oldest first; and what was labelled last."""
    return _audit(request, services)


@router.post("/page/audit", response_class=Response, openapi_extra=least("reviewer"))
def label(
    request: Request,
    services: Opened,
    ids: Annotated[list[str], Form(description="of the selected items")] = [],  # noqa: B006  # FastAPI copies it
    called: Annotated[str, Form(max_length=200, description="of the button; empty: as typed")] = "",
    family: Annotated[str, Form(max_length=200, description="as typed")] = "",
) -> Response:
    """Say what the selected items are; then what still waits. A refusal keeps what was selected."""
    typed = {"chosen": set(ids), "family": family}
    request.state.again = lambda error, status: _audit(request, services, {**typed, "error": error}, status)
    name = (called or family).strip()
    if not ids or not name:
        raise HTTPException(422, "select items first" if not ids else "choose a label: real, or a family")
    for id_ in ids[: _TILES + _DONE]:
        api.audit(services, visitor(request).name, given_as(AuditLabel, id=id_, label=name))
    return RedirectResponse("/page/audit", 303)


@router.get("/page/audit/picture.png", response_class=Response, openapi_extra=least("reviewer"))
def get_picture(services: Opened, id: Annotated[str, Query(max_length=300)]) -> Response:
    """A drawn item, its first frame whole, as a PNG made here; where there is none, why."""
    with services.memory.read() as connection:
        digest = drawn_media(connection, id)
    if digest is None:
        raise HTTPException(404, "it was not drawn for the audit")
    try:
        png = pictures.whole(services.shared_media.picture(id, digest))
    except NoPictureError as error:
        png = pictures.words(str(error))
    return Response(png, media_type="image/png", headers={"cache-control": f"private, max-age={_SHOWN_S}"})


def _audit(
    request: Request, services: Services, typed: dict[str, Any] | None = None, status: int = 200
) -> HTMLResponse:
    live = replay(services.ledger.events()).live
    with services.memory.read() as connection:
        done = newest_audited(connection, _DONE)
    context = {
        "tiles": [
            (item, f"/page/audit/picture.png?id={quote(item.id, safe='')}")
            for item in api.list_audits(services, _TILES)
        ],
        "families": sorted(set(live.candidate.classes) - {REAL}) if live else [],
        "cannot_say": CANNOT_SAY,
        "done": done,
        "open_days": OPEN_DAYS,
        "chosen": set(),
        "family": "",
        **(typed or {}),
    }
    return show(request, services, "audit.html.j2", "Quality sample", context, status)

"""Shared items with the same two words of both releases, and the form by which a person labels them."""

from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Form, HTTPException, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from deploy.access.guard import GuardedRoute
from deploy.access.roles import least
from deploy.page.releases import given_as
from deploy.page.rollout import items_path
from deploy.page.visit import show, visitor
from deploy.releases.trial import LABELS_WANTED
from deploy.rollout_records import Disagreement, Judge
from deploy.rollouts.checks import ERROR
from deploy.server import pictures
from deploy.server import rollouts as api
from deploy.server.pictures import NoPictureError
from deploy.server.services import Opened, Services
from memory.records import REAL

router = APIRouter(route_class=GuardedRoute)

_TILES = 24
"""of a page"""
_SHOWN_S = 60
"""that a browser keeps a picture"""

Page = Annotated[int, Query(ge=1, le=1000)]


@router.get("/page/rollout/items", response_class=HTMLResponse, openapi_extra=least("viewer"))
def get_items(
    request: Request, services: Opened, champion: api.Said, challenger: api.Said, page: Page = 1
) -> HTMLResponse:
    """The newest items of which the champion said this and the challenger that."""
    return _items(request, services, champion, challenger, page)


@router.post("/page/rollout/items", response_class=Response, openapi_extra=least("reviewer"))
def label(
    request: Request,
    services: Opened,
    champion: api.Said,
    challenger: api.Said,
    page: Page = 1,
    digest: Annotated[str, Form(max_length=64, description="the release on trial, as the page had it")] = "",
    ids: Annotated[list[str], Form(description="of the selected items")] = [],  # noqa: B006  # FastAPI copies it
    called: Annotated[str, Form(max_length=200, description="of the button; empty: as typed")] = "",
    family: Annotated[str, Form(max_length=200, description="as typed")] = "",
) -> Response:
    """Say what the selected items are; then the same items again. A refusal keeps what was selected."""
    typed = {"chosen": set(ids), "family": family}
    request.state.again = lambda error, status: _items(
        request, services, champion, challenger, page, {**typed, "error": error}, status
    )
    name = (called or family).strip()
    if not ids or not name:
        raise HTTPException(422, "select items first" if not ids else "choose a label: real, or a family")
    labels = dict.fromkeys(ids, name)
    api.judge(services, visitor(request).name, given_as(Judge, digest=digest, labels=labels))
    return RedirectResponse(f"{items_path(champion, challenger)}&page={page}", 303)


@router.get("/page/rollout/items/picture.png", response_class=Response, openapi_extra=least("viewer"))
def get_picture(
    services: Opened,
    id: Annotated[str, Query(max_length=300)],
    digest: Annotated[str, Query(pattern="^[0-9a-f]{64}$", description="of its media")],
) -> Response:
    """A shared item, its first frame whole, as a PNG made here; where there is none, why."""
    if id not in services.controller.kept_ids():
        raise HTTPException(404, "it is no shared item of this rollout that can be opened")
    try:
        png = pictures.whole(services.shared_media.picture(id, digest))
    except NoPictureError as error:
        png = pictures.words(str(error))
    return Response(png, media_type="image/png", headers={"cache-control": f"private, max-age={_SHOWN_S}"})


def _picture_of(item: Disagreement) -> str:
    return "/page/rollout/items/picture.png?" + urlencode({"id": item.id, "digest": item.digest})


def _items(
    request: Request,
    services: Services,
    champion: str,
    challenger: str,
    page: int,
    typed: dict[str, Any] | None = None,
    status: int = 200,
) -> HTMLResponse:
    items = services.controller.items(champion, challenger)
    trial = services.controller.view().trial
    part = items[(page - 1) * _TILES : page * _TILES]
    families = sorted({champion, challenger} - {REAL, "unknown", ERROR})
    context = {
        "trial": trial,
        "champion": champion,
        "challenger": challenger,
        "count": len(items),
        # The ledger has a label at once; the comparisons are read anew by it meanwhile.
        "tiles": [
            (item, (trial and trial.labels.get(item.id)) or item.label, _picture_of(item)) for item in part
        ],
        "page": page,
        "pages": -(-len(items) // _TILES),
        "link": f"{items_path(champion, challenger)}&",
        "families": families,
        "may_label": trial is not None and champion != challenger and ERROR not in (champion, challenger),
        "wanted": LABELS_WANTED,
        "chosen": set(),
        "family": "",
        **(typed or {}),
    }
    return show(request, services, "rollout_items.html.j2", "Rollout", context, status)

"""Updates: running ones and their progress, refused ones and the reasons, and a button that requests one."""

from typing import Annotated

from fastapi import APIRouter, Form, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from deploy.access.guard import GuardedRoute, person_of
from deploy.access.roles import least
from deploy.page.releases import given_as
from deploy.page.visit import show, visitor
from deploy.release_records import Because, State
from deploy.releases.standing import replay
from deploy.server import releases as api
from deploy.server.services import Opened, Services

router = APIRouter(route_class=GuardedRoute)

_SHOWN = 30


@router.get("/page/updates", response_class=HTMLResponse, openapi_extra=least("viewer"))
def get_updates(request: Request, services: Opened) -> HTMLResponse:
    """The newest updates, and what one of today's labels would and would not know."""
    context = {
        "runs": services.runs.newest(_SHOWN),
        "states": _states(services),
        "outlook": api.get_outlook(services),
    }
    return show(request, services, "updates.html.j2", "Updates", context)


@router.get("/page/updates/{run}", response_class=HTMLResponse, openapi_extra=least("viewer"))
def get_update(request: Request, services: Opened, run: int) -> HTMLResponse:
    """One update: its state, stage and progress, and why it ended as it did."""
    return _update(request, services, run)


@router.post("/page/updates/{run}", response_class=Response, openapi_extra=least("reviewer"))
def cancel(
    request: Request, services: Opened, run: int, reason: Annotated[str, Form(max_length=1000)] = ""
) -> Response:
    """End it, with a reason; then its view again."""
    api.get_update(services, run)
    request.state.again = lambda error, status: _update(request, services, run, error, status)
    api.cancel_update(services, person_of(request), run, given_as(Because, reason=reason))
    return RedirectResponse(f"/page/updates/{run}", 303)


def _update(
    request: Request, services: Services, run: int, error: str | None = None, status: int = 200
) -> HTMLResponse:
    context = {"run": api.get_update(services, run), "states": _states(services), "error": error}
    return show(request, services, "update.html.j2", "Updates", context, status)


def _states(services: Services) -> dict[str, State]:
    """Return the releases' states by digest: an update's release that is live is not proposed any more."""
    return {release.digest: release.state for release in replay(services.ledger.events()).releases.values()}


@router.post("/page/updates", response_class=Response, openapi_extra=least("reviewer"))
def ask(request: Request, services: Opened) -> Response:
    """Ask for an update now; then its view."""
    run = api.request_update(services, visitor(request).name)
    return RedirectResponse(f"/page/updates/{run.id}", 303)

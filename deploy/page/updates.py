"""Updates: what runs and how far it is, what was refused and why, and a button that asks for one."""

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from deploy.access.guard import GuardedRoute
from deploy.access.roles import least
from deploy.page.visit import show, visitor
from deploy.server import releases as api
from deploy.server.services import Opened

router = APIRouter(route_class=GuardedRoute)

_SHOWN = 30


@router.get("/page/updates", response_class=HTMLResponse, openapi_extra=least("viewer"))
def get_updates(request: Request, services: Opened) -> HTMLResponse:
    """The newest updates, and what one of today's labels would and would not know."""
    context = {"runs": services.runs.newest(_SHOWN), "outlook": api.get_outlook(services)}
    return show(request, services, "updates.html.j2", "Updates", context)


@router.get("/page/updates/{run}", response_class=HTMLResponse, openapi_extra=least("viewer"))
def get_update(request: Request, services: Opened, run: int) -> HTMLResponse:
    """One update: its state, stage and progress, and why it ended as it did."""
    try:
        found = services.runs.get(run)
    except KeyError as error:
        raise HTTPException(404, f"no update {run}") from error
    return show(request, services, "update.html.j2", "Updates", {"run": found})


@router.post("/page/updates", response_class=Response, openapi_extra=least("reviewer"))
def ask(request: Request, services: Opened) -> Response:
    """Ask for an update now; then its view."""
    run = api.request_update(services, visitor(request).name)
    return RedirectResponse(f"/page/updates/{run.id}", 303)

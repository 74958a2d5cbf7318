"""Record: who did what, when, in every room."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from deploy.access.guard import GuardedRoute
from deploy.access.roles import least
from deploy.page.visit import show
from deploy.server.services import Opened

router = APIRouter(route_class=GuardedRoute)

_SHOWN = 100

Word = Annotated[str, Query(max_length=200)]


@router.get("/page/record", response_class=HTMLResponse, openapi_extra=least("viewer"))
def get_record(
    request: Request,
    services: Opened,
    before: Annotated[int | None, Query(ge=1)] = None,
    actor: Word = "",
    action: Word = "",
) -> HTMLResponse:
    """A page of acts, the newest first; of one person or one kind, if asked."""
    services.memory_acts.bring_in()
    entries = services.record.entries(_SHOWN, before=before, actor=actor or None, action=action or None)
    context = {
        "entries": entries,
        "older": entries[-1].sequence if len(entries) == _SHOWN else None,
        "actor": actor,
        "action": action,
        "published": services.heads.newest,
        "problem": services.heads.problem,
    }
    return show(request, services, "record.html.j2", "Audit log", context)

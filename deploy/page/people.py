"""People: who has a token, for which role, until when; and the audit log of their acts."""

from typing import Annotated

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse, Response

from deploy.access import api
from deploy.access.guard import GuardedRoute, Who
from deploy.access.roles import Role, TokenMade, TokenRequest, least
from deploy.page.visit import show
from deploy.server.services import Opened, Services

router = APIRouter(route_class=GuardedRoute)


@router.get("/page/people", response_class=HTMLResponse, openapi_extra=least("admin"))
def get_people(request: Request, services: Opened) -> HTMLResponse:
    """Every token that was ever given; never the token itself."""
    return _people(request, services)


@router.post("/page/people", response_class=Response, openapi_extra=least("admin"))
def give(
    request: Request,
    services: Opened,
    who: Who,
    name: Annotated[str, Form(min_length=1, max_length=200)],
    role: Annotated[Role, Form()] = "viewer",
    days: Annotated[int, Form(ge=1, le=3650)] = 90,
    revoke: Annotated[bool, Form()] = False,
) -> Response:
    """Give somebody a token, which is shown in this answer alone, or end theirs."""
    request.state.again = lambda error, status: _people(request, services, error=error, status=status)
    if revoke:
        api.revoke_token(request, who, name)
        return _people(request, services)
    made = api.add_token(request, who, TokenRequest(name=name, role=role, days=days))
    return _people(request, services, made=made, status=201)


def _people(
    request: Request,
    services: Services,
    *,
    made: TokenMade | None = None,
    error: str | None = None,
    status: int = 200,
) -> HTMLResponse:
    context = {"tokens": api.list_tokens(request), "made": made, "error": error}
    return show(request, services, "people.html.j2", "Users and tokens", context, status)


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

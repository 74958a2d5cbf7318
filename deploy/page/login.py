"""The way in: a token, once, for a session of this browser."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from deploy.access.api import own_path
from deploy.access.guard import GuardedRoute
from deploy.access.roles import anyone
from deploy.page.render import render

router = APIRouter(route_class=GuardedRoute)


@router.get("/login", response_class=HTMLResponse, openapi_extra=anyone())
def get_login(request: Request, next: Annotated[str, Query(max_length=2000)] = "/") -> HTMLResponse:
    """The form that asks for a token, and leads on to `next`."""
    return _form(request, next)


def ask(request: Request, reason: str, status: int) -> HTMLResponse:
    """Ask for a token instead of the view that was asked for, and lead back to it, or to what was typed."""
    path = request.scope["path"]
    if path in ("/login", "/logout"):
        return _form(request, getattr(request.state, "next", "/"), reason, status)
    if kept := getattr(request.state, "kept", None):
        return _form(request, kept, f"{reason}; what you typed is kept, and shown then", status)
    typed = "; what you typed is one step back in your browser" if request.method == "POST" else ""
    return _form(request, path, reason + typed, status)


def _form(request: Request, next_: str, error: str | None = None, status: int = 200) -> HTMLResponse:
    return render(request, "login.html.j2", {"next": own_path(next_), "error": error}, status)

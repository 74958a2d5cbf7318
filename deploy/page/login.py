"""The way in: a token, once, for a session of this browser; and forms typed as the session before ended.

The server keeps that for a while, and shows it after the login. Nothing is done by itself: the person sees
what would be sent, and sends it. The place is a random name that the browser alone was given which sent it.
"""

import secrets
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, HTTPException, Path, Query, Request
from fastapi.responses import HTMLResponse

from deploy.access.api import own_path
from deploy.access.guard import FORM_FIELD, GuardedRoute, require_same_origin
from deploy.access.roles import anyone, least
from deploy.page.render import render
from deploy.page.visit import show
from deploy.server.services import Opened

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


_MAX_BYTES = 2**16
_MOST = 64
_KEPT_S = 900.0
_SHORT = 200
"""characters of a field that is shown as it will be sent, and not to be changed"""


@dataclass(frozen=True)
class Typed:
    """A form that was not taken: where it goes, and its fields in their order."""

    path: str
    fields: tuple[tuple[str, str], ...]
    at: float

    @property
    def texts(self) -> list[tuple[str, str]]:
        """Fields that a person wrote, as far as their value shows."""
        return [(name, value) for name, value in self.fields if " " in value or len(value) > _SHORT]

    @property
    def others(self) -> list[tuple[str, str]]:
        return [field for field in self.fields if field not in self.texts]


class KeptForms:
    """The newest of them, in this process alone."""

    def __init__(self) -> None:
        self._forms: OrderedDict[str, Typed] = OrderedDict()
        self._lock = threading.Lock()

    def put(self, typed: Typed) -> str:
        """Keep one; return its random name."""
        name = secrets.token_urlsafe(16)
        with self._lock:
            self._forms[name] = typed
            while len(self._forms) > _MOST:
                self._forms.popitem(last=False)
        return name

    def get(self, name: str) -> Typed | None:
        """The form of this name; None where there is none any more."""
        with self._lock:
            typed = self._forms.get(name)
        return typed if typed and time.monotonic() - typed.at < _KEPT_S else None


async def keep(request: Request) -> str | None:
    """Keep the form that this request sends, if a page of this server sent it; return where it is shown."""
    length = request.headers.get("content-length", "")
    form = request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded")
    path = request.scope["path"]
    if request.method != "POST" or not form or not length.isascii() or not length.isdigit():
        return None
    if int(length) > _MAX_BYTES or not path.startswith("/page/"):
        return None
    try:
        require_same_origin(request)
    except HTTPException:
        return None
    sent = (await request.form()).multi_items()
    fields = tuple((name, str(value)) for name, value in sent if name != FORM_FIELD)
    forms: KeptForms = request.app.state.kept_forms
    return f"/page/kept/{forms.put(Typed(own_path(path), fields, time.monotonic()))}"


@router.get("/page/kept/{name}", response_class=HTMLResponse, openapi_extra=least("viewer"))
def get_kept(request: Request, services: Opened, name: Annotated[str, Path(max_length=50)]) -> HTMLResponse:
    """What was typed, in a form that sends it again."""
    forms: KeptForms = request.app.state.kept_forms
    if (typed := forms.get(name)) is None:
        raise HTTPException(404, "what was typed is kept for 15 minutes; it is gone")
    return show(request, services, "kept.html.j2", "What you typed", {"typed": typed})

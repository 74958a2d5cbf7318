"""The page as a part of the server's app: its views, its headers, and its error pages."""

from collections.abc import Callable

from fastapi import FastAPI, Request, Response
from fastapi.exception_handlers import http_exception_handler, request_validation_exception_handler
from fastapi.exceptions import RequestValidationError
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException

from deploy.access.roles import PEOPLE, Person
from deploy.page import (
    accuracy,
    clusters,
    dead_letters,
    docs,
    login,
    now,
    people,
    releases,
    rollout,
    rollout_items,
    sources,
    try_file,
    updates,
    verdicts,
)
from deploy.page.render import Secured
from deploy.page.visit import show
from deploy.server.services import of_request

_VIEWS = (
    now,
    sources,
    accuracy,
    dead_letters,
    try_file,
    clusters,
    updates,
    releases,
    rollout,
    rollout_items,
    verdicts,
    people,
    login,
    docs,
)

_TITLES = {
    403: "Not allowed",
    404: "Not found",
    409: "Not possible now",
    413: "Too large",
    422: "Look at what you entered",
    503: "Not available now",
}
"""of a view that says why there is none"""
Again = Callable[[str, int], Response]
"""Shows the form of a refused action anew, with what was typed; given the reason and a status."""


def add_page(app: FastAPI) -> None:
    """Add every view, and send every answer of the app under the page's policy."""
    for view in _VIEWS:
        app.include_router(view.router, include_in_schema=False)
    app.state.kept_forms = login.KeptForms()
    app.add_middleware(Secured)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid)


def is_page(request: Request) -> bool:
    """Whether a browser's view is answered, and not a call of the API."""
    path = request.scope["path"]
    return path in ("/", "/login", "/logout") or path.startswith("/page/")


def refuse(request: Request, reason: str, status: int) -> Response:
    """Say why an action was refused where its form was, or a view cannot be shown."""
    again: Again | None = getattr(request.state, "again", None)
    if again is not None:
        del request.state.again  # what it shows may be refused itself
        return again(reason, status)
    person: Person | None = getattr(request.state, "person", None)
    if status == 401 or person is None or person.roles.isdisjoint(PEOPLE):
        return login.ask(request, reason, status)
    title = _TITLES.get(status, "That did not work")
    return show(request, of_request(request), "error.html.j2", title, {"error": reason}, status)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if not is_page(request):
        return await http_exception_handler(request, error)
    if error.status_code == 401:
        request.state.kept = await login.keep(request)
    return await run_in_threadpool(refuse, request, str(error.detail), error.status_code)


async def _invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    if not is_page(request):
        return await request_validation_exception_handler(request, error)
    first = error.errors()[0]
    return await run_in_threadpool(refuse, request, f"{first['loc'][-1]}: {first['msg']}", 422)

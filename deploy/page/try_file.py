"""Try a file: the verdict of the live release on it, and nothing is kept."""

import re
from pathlib import PurePath
from typing import Annotated

from fastapi import APIRouter, Form, HTTPException, Request, UploadFile
from fastapi.responses import HTMLResponse

from deploy.access.guard import GuardedRoute
from deploy.access.roles import least
from deploy.page.verdicts import parts_of
from deploy.page.visit import show
from deploy.releases.standing import fold
from deploy.server.services import Opened
from deploy.server.trying import MAX_BYTES, TryError

router = APIRouter(route_class=GuardedRoute)

_FORM_BYTES = 2**16
_NO_SOURCE = "none"
"""Else its source would be the folder that the server keeps it in meanwhile."""
_SUFFIX = re.compile(r"\.[a-z0-9]{1,5}")


@router.get("/page/try", response_class=HTMLResponse, openapi_extra=least("reviewer"))
def get_try(request: Request, services: Opened) -> HTMLResponse:
    """The form that takes a file."""
    return show(request, services, "try.html.j2", "Try a file", {"verdict": None, "name": "", "source": ""})


@router.post(
    "/page/try",
    response_class=HTMLResponse,
    openapi_extra=least("reviewer"),
    max_body_size=MAX_BYTES + _FORM_BYTES,
)
def try_file(
    request: Request,
    services: Opened,
    file: UploadFile,
    source: Annotated[str, Form(max_length=1000)] = "",
) -> HTMLResponse:
    """Score a file as the stream would; it goes to no topic, and nothing of it is kept."""
    live = fold(services.ledger.events()).live
    content, name = file.file.read(), PurePath(file.filename or "").name
    if live is None:
        raise HTTPException(409, "nothing is live yet: ask for an update, and approve its release")
    if not content:
        raise HTTPException(422, "file: it is empty, or none was chosen")
    suffix = PurePath(name).suffix.lower()
    try:
        verdict = services.trier.score(
            content, suffix if _SUFFIX.fullmatch(suffix) else "", live.digest, source.strip() or _NO_SOURCE
        )
    except TryError as error:
        raise HTTPException(422, str(error)) from error
    context = {"verdict": verdict, "parts": parts_of(verdict), "name": name, "source": source}
    return show(request, services, "try.html.j2", "Try a file", context)

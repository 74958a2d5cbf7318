"""Check a file: the verdict of the live release on it, with its picture; nothing goes to the memory."""

import re
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Annotated, Any

from fastapi import APIRouter, File, Form, HTTPException, Path, Request, UploadFile
from fastapi.responses import HTMLResponse, Response

from deploy.access.guard import GuardedRoute
from deploy.access.roles import least
from deploy.client.pictures import HELP
from deploy.page.verdicts import parts_of
from deploy.page.visit import show
from deploy.releases.standing import replay
from deploy.server.services import Opened, Services
from deploy.server.trying import MAX_BYTES, TryError

router = APIRouter(route_class=GuardedRoute)

_FORM_BYTES, _MOST = 2**16, 12
"""of the other fields; files at once"""
_NO_SOURCE = "none"
"""Else its source would be the folder that the server keeps it in meanwhile."""
_SUFFIX = re.compile(r"\.[a-z0-9]{1,5}")


@router.get("/page/try", response_class=HTMLResponse, openapi_extra=least("reviewer"))
def get_try(request: Request, services: Opened) -> HTMLResponse:
    """The form that takes files."""
    return _try(request, services)


@router.get("/page/try/{name}.png", response_class=Response, openapi_extra=least("reviewer"))
def get_picture(services: Opened, name: Annotated[str, Path(max_length=50)]) -> Response:
    """A picture of what was tried, under a name that its answer alone has; it is gone after some minutes."""
    if (png := services.trier.picture(name)) is None:
        raise HTTPException(404, "pictures of tried files are kept for five minutes; this one is gone")
    return Response(png, media_type="image/png", headers={"cache-control": "no-store"})


@router.post(
    "/page/try",
    response_class=HTMLResponse,
    openapi_extra=least("reviewer"),
    max_body_size=MAX_BYTES + _FORM_BYTES,
)
def try_files(
    request: Request,
    services: Opened,
    file: Annotated[list[UploadFile], File(description="pictures and videos")] = [],  # noqa: B006  # FastAPI copies it
    source: Annotated[str, Form(max_length=1000)] = "",
) -> HTMLResponse:
    """Score files as the stream would; they go to no topic, and nothing of them is kept."""
    request.state.again = lambda error, status: _try(request, services, (), source, error, status)
    live = replay(services.ledger.events()).live
    if live is None:
        raise HTTPException(409, "nothing is live yet: ask for an update, and approve its release")
    chosen = [upload for upload in file if upload.filename]
    if not chosen or len(chosen) > _MOST:
        raise HTTPException(422, f"choose a picture or a video, or up to {_MOST} of them")
    results = [_try_one(services, upload, live.digest, source.strip() or _NO_SOURCE) for upload in chosen]
    failed = all(result["problem"] for result in results)
    return _try(request, services, results, source, None, 422 if failed else 200)


def _try_one(services: Services, file: UploadFile, digest: str, source: str) -> dict[str, Any]:
    """The result of one file: its verdict and pictures, or a remedy."""
    name, content = PurePath(file.filename or "").name, file.file.read()
    suffix = PurePath(name).suffix.lower()
    try:
        if not content:
            raise TryError(HELP["empty"])
        tried = services.trier.score(content, suffix if _SUFFIX.fullmatch(suffix) else "", digest, source)
    except TryError as error:
        return {"name": name, "problem": str(error)}
    return {"name": name, "problem": None, "tried": tried, "parts": parts_of(tried.verdict)}


def _try(
    request: Request,
    services: Services,
    results: Sequence[Mapping[str, Any]] = (),
    source: str = "",
    error: str | None = None,
    status: int = 200,
) -> HTMLResponse:
    context = {"results": results, "source": source, "error": error}
    return show(request, services, "try.html.j2", "Check a file", context, status)

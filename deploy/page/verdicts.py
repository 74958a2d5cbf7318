"""Verdicts: one by its id, with its pictures, its scores in words, and who it rests on."""

from datetime import UTC, datetime
from typing import Annotated, Any, Literal
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Depends, HTTPException, Path, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from deploy.access.guard import GuardedRoute
from deploy.access.roles import least
from deploy.lineage import back
from deploy.lineage.onward import Ground
from deploy.page.clusters import LOOKS, picture_of
from deploy.page.visit import show
from deploy.server.clusters import no_maps
from deploy.server.lineage import ground
from deploy.server.pictures import NoPictureError, timeline, whole, words
from deploy.server.services import Opened, Services
from detector.records import Verdict
from memory.clusters.pages import members
from memory.rows import UnknownExemplarError
from memory.verdict_index import item_id, search_verdicts

router = APIRouter(route_class=GuardedRoute)

_SHOWN, _WHOLE_PX = 50, 1024
"""verdicts of a page; the longer side of a whole picture"""


@router.get("/page/verdicts", response_class=Response, openapi_extra=least("viewer"))
def find(
    request: Request,
    services: Opened,
    id: Annotated[str, Query(max_length=300)] = "",
    source: Annotated[str, Query(max_length=1000, description="or a part of it")] = "",
    label: Annotated[Literal["", "real", "unknown", "fake"], Query()] = "",
    family: Annotated[str, Query(max_length=64)] = "",
    since: Annotated[str, Query(max_length=30, description="in UTC, as 2026-01-31T10:00")] = "",
    until: Annotated[str, Query(max_length=30, description="in UTC")] = "",
    page: Annotated[int, Query(ge=1, le=1000)] = 1,
) -> Response:
    """The newest verdicts, of a source, a label, a family and a time; or one by its id."""
    if id.strip():
        return RedirectResponse(f"/page/verdicts/{quote(id.strip(), safe='')}", 303)
    wanted = {"source": source.strip(), "label": label, "family": family.strip()}
    filters = wanted | {"since": since, "until": until}
    with services.memory.read() as connection:
        spots = search_verdicts(
            connection,
            _SHOWN + 1,
            **wanted,
            since_ms=_moment(since, 0),
            until_ms=_moment(until, 2**62),
            skip=(page - 1) * _SHOWN,
        )
    context = {
        "verdicts": [(place, item_id(place, services.ingest.media_topic), False) for place in spots[:_SHOWN]],
        "wanted": filters,
        "filtered": any(filters.values()),
        "page": page,
        "pages": page + (len(spots) > _SHOWN),
        "link": f"/page/verdicts?{urlencode({name: text for name, text in filters.items() if text})}&",
    }
    return show(request, services, "verdicts.html.j2", "Verdicts", context)


def _moment(text: str, otherwise: int) -> int:
    """Return a time that somebody entered, milliseconds since 1970. Raises HTTPException (422)."""
    if not text.strip():
        return otherwise
    try:
        return round(datetime.fromisoformat(text.strip()).replace(tzinfo=UTC).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        raise HTTPException(422, f"{text!r} is no time such as 2026-01-31T10:00") from error


@router.get("/page/verdicts/{id_}", response_class=HTMLResponse, openapi_extra=least("viewer"))
def get_verdict(
    request: Request,
    services: Opened,
    here: Annotated[Ground, Depends(ground)],
    id_: Annotated[str, Path(max_length=300)],
) -> HTMLResponse:
    """One verdict, from its pictures back to the people whose labels it rests on."""
    lineage = back.of_verdict(here, id_)
    no_map = no_maps(services, [lineage.verdict.release]) if lineage.verdict else None
    context: dict[str, Any] = {
        "lineage": lineage,
        "verdict": lineage.verdict,
        "pictures": _pictures(services, id_, no_map),
        "no_map": no_map,
        "parts": parts_of(lineage.verdict) if lineage.verdict else [],
        "neighbours": [(near, picture_of(near.exemplar)) for near in lineage.neighbours],
    }
    return show(request, services, "verdict.html.j2", "Verdicts", context)


@router.get("/page/verdicts/{id_}/timeline.png", response_class=Response, openapi_extra=least("viewer"))
def get_timeline(
    here: Annotated[Ground, Depends(ground)], id_: Annotated[str, Path(max_length=300)]
) -> Response:
    """When a video is forged, as its scan says, as a PNG made here."""
    lineage = back.of_verdict(here, id_)
    if lineage.verdict is None:
        raise HTTPException(404, "; ".join(lineage.problems))
    return Response(timeline(lineage.verdict), media_type="image/png", headers={"cache-control": "no-store"})


@router.get("/page/verdicts/{id_}/picture.png", response_class=Response, openapi_extra=least("viewer"))
def get_picture(
    services: Opened, here: Annotated[Ground, Depends(ground)], id_: Annotated[str, Path(max_length=300)]
) -> Response:
    """The item, its first frame whole, as a PNG made here, to be zoomed into; where there is none, why."""
    lineage = back.of_verdict(here, id_)
    if lineage.verdict is None:
        raise HTTPException(404, "; ".join(lineage.problems))
    try:
        png = whole(services.shared_media.picture(id_, lineage.verdict.item.digest, _WHOLE_PX))
    except NoPictureError as error:
        png = words(str(error))
    return Response(png, media_type="image/png", headers={"cache-control": "no-store"})


def parts_of(verdict: Verdict) -> list[tuple[str, float]]:
    """Each score's part of the unknown score, the largest first."""
    return sorted((verdict.unknown_parts or {}).items(), key=lambda part: -abs(part[1]))


def _pictures(services: Services, id_: str, no_map: str | None) -> list[tuple[str, str]]:
    """The memory's pictures of the item: of unknown and labelled ones alone it keeps crops."""
    try:
        with services.memory.read() as connection:
            (member,) = members(connection, [id_])
    except UnknownExemplarError:
        return []
    looks = (LOOKS if member.has_map and not no_map else LOOKS[:2]) if member.crops else ()
    return [(title, picture_of(id_, look)) for look, title in looks]

"""Dead letters: failed items, their reasons, and the place of the original."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse

from deploy.access.guard import GuardedRoute
from deploy.access.roles import least
from deploy.dead_letters import read_page
from deploy.page.visit import show
from deploy.server.services import Opened
from deploy.settings import DeploySettings
from ingest.kafka.topics import TopicError

router = APIRouter(route_class=GuardedRoute)

_SHOWN = 50
_PLACES = r"^([0-9]{1,5}:[0-9]{1,18},?){0,200}$"
"""partition:offset, of each partition"""


@router.get("/page/dead-letters", response_class=HTMLResponse, openapi_extra=least("viewer"))
def get_dead_letters(
    request: Request, services: Opened, before: Annotated[str, Query(max_length=5000, pattern=_PLACES)] = ""
) -> HTMLResponse:
    """A page of dead letters, the newest first."""
    settings: DeploySettings = request.app.state.settings
    pairs = (place.split(":") for place in before.split(",") if place)
    places = {int(partition): int(offset) for partition, offset in pairs}
    context: dict[str, object] = {"letters": (), "older": None, "problem": None}
    try:
        page = read_page(services.ingest, places, _SHOWN, settings.kafka_timeout_s)
    except TopicError as error:
        context["problem"] = str(error)
    else:
        older = page.older and ",".join(f"{part}:{offset}" for part, offset in sorted(page.older.items()))
        context |= {"letters": page.letters, "older": older}
    return show(request, services, "dead_letters.html.j2", "Dead letters", context)

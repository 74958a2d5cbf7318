"""Now: what is live, what waits for whom, how far behind, what fires, the verdicts as they come."""

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import HTMLResponse

from deploy.access.guard import GuardedRoute
from deploy.access.roles import anyone, least
from deploy.page.render import static_files
from deploy.page.visit import show
from deploy.release_records import WAITING
from deploy.releases.standing import fold
from deploy.server.services import Opened
from deploy.server.status import under_way
from deploy.server.surroundings import Watch
from memory.clusters.review import list_clusters
from memory.verdict_index import WITHDRAWN, corrected_among, item_id, newest_verdicts

router = APIRouter(route_class=GuardedRoute)

_SHOWN = 12
"""of the newest verdicts"""
_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


@router.get("/", response_class=HTMLResponse, openapi_extra=least("viewer"))
def get_now(request: Request, services: Opened) -> HTMLResponse:
    """The state of the whole loop at one look."""
    standing = fold(services.ledger.events())
    clusters = list_clusters(services.memory)
    runs = services.runs.newest(5)
    with services.memory.read() as connection:
        newest = newest_verdicts(connection, _SHOWN)
        corrected = corrected_among(connection, newest)
    watch: Watch = request.app.state.surroundings
    context = {
        "around": watch.last(),
        "verdicts": [
            (
                place,
                item_id(place, services.ingest.media_topic),
                (place.item_partition, place.item_offset) in corrected and place.label != WITHDRAWN,
            )
            for place in newest
        ],
        "live": standing.live,
        "undecided": [r for r in standing.releases.values() if r.state in WAITING],
        "clusters": clusters,
        "alarms": [cluster.alarm for cluster in clusters if cluster.alarm],
        "unknown": sum(len(cluster.members) for cluster in clusters),
        "running": [run for run in runs if run.state in ("queued", "running")],
        "under_way": list(under_way(services)),
        "publish_problem": services.publisher.problem,
        "record_problem": services.heads.problem,
    }
    return show(request, services, "now.html.j2", "Now", context)


@router.get("/page/static/{digest}/{name}", response_class=Response, openapi_extra=anyone())
def get_static(digest: str, name: str) -> Response:
    """One of the page's own files; it never changes under its digest."""
    content, now = static_files().get(name, (b"", ""))
    if digest != now:
        raise HTTPException(404, "no such file: load the page again")
    kept = "public, max-age=31536000, immutable"
    kind = _TYPES[name.rpartition(".")[2]]
    return Response(content, media_type=f"{kind}; charset=utf-8", headers={"cache-control": kept})

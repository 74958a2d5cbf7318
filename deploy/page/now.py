"""Overview: the live release, pending decisions, lag, alerts, the verdicts as they come."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import HTMLResponse

from deploy.access.guard import GuardedRoute
from deploy.access.roles import anyone, least
from deploy.page.render import duration, format_count, percent, static_files
from deploy.page.visit import show
from deploy.release_records import WAITING
from deploy.releases.standing import replay
from deploy.server.services import Opened
from deploy.server.status import under_way
from deploy.server.surroundings import ContextCache, ServerContext
from memory.clusters.review import list_clusters
from memory.verdict_index import WITHDRAWN, corrected_among, item_id, newest_verdicts

router = APIRouter(route_class=GuardedRoute)

_SHOWN = 12
"""of the newest verdicts"""
_TYPES = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}


_WIDE, _HIGH = 480, 96
"""of a chart, in its own units"""
_LABELS = (("real", "f-ok"), ("unknown", "f-wait"), ("fake", "f-bad"))
Bar = tuple[float, float, float, float, str]
"""left, top, width, height and style of a rectangle"""


@router.get("/", response_class=HTMLResponse, openapi_extra=least("viewer"))
def get_now(request: Request, services: Opened) -> HTMLResponse:
    """The state of the whole loop at one look."""
    standing = replay(services.ledger.events())
    clusters = list_clusters(services.memory)
    runs = services.runs.newest(5)
    with services.memory.read() as connection:
        newest = newest_verdicts(connection, _SHOWN)
        corrected = corrected_among(connection, newest)
    watch: ContextCache = request.app.state.surroundings
    around = watch.last()
    context = {
        "around": around,
        "charts": _charts(around),
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
    return show(request, services, "now.html.j2", "Overview", context)


@router.get("/page/static/{digest}/{name}", response_class=Response, openapi_extra=anyone())
def get_static(digest: str, name: str) -> Response:
    """One of the page's own files; it never changes under its digest."""
    content, now = static_files().get(name, (b"", ""))
    if digest != now:
        raise HTTPException(404, "no such file: load the page again")
    kept = "public, max-age=31536000, immutable"
    kind = _TYPES[name.rpartition(".")[2]]
    return Response(content, media_type=f"{kind}; charset=utf-8", headers={"cache-control": kept})


@dataclass(frozen=True)
class Chart:
    """A chart: its title, its upper bound, its text in one sentence, and its shapes.

    bars: x, y, width, height and the class of their colour. points: of a polyline; empty without one.
    """

    title: str
    top: str
    says: str
    bars: Sequence[Bar] = ()
    points: str = ""


def _charts(around: ServerContext) -> list[Chart]:
    """Return the charts of the first view: verdicts' shares, how many are unknown, and the lag."""
    counts, samples = around.counts, around.lag_samples
    sums = {label: sum(of.get(label, 0) for of in counts) for label, _ in _LABELS}
    total = sum(sums.values())
    charts = []
    if total:
        text = ", ".join(f"{label} {percent(sums[label] / total)}" for label, _ in _LABELS)
        charts = [
            Chart("Share of verdicts", "100 %", f"{text} of {format_count(total)} verdicts", _shares(counts)),
            _unknowns(counts, sums["unknown"]),
        ]
    if samples:
        most = max(seconds for _, seconds in samples)
        points = _line(samples, around.since_s, around.until_s, most)
        text = f"now {duration(samples[-1][1])}, at most {duration(most)}"
        charts.append(Chart("Consumer lag", duration(most), text, (), points))
    return charts


def _shares(counts: Sequence[Mapping[str, int]]) -> list[Bar]:
    """Stacked bars, each as high as the chart: a part without verdicts has none."""
    bars, width = [], _WIDE / len(counts)
    for place, of in enumerate(counts):
        total, y = sum(of.get(label, 0) for label, _ in _LABELS), float(_HIGH)
        for label, style in _LABELS:
            high = _HIGH * of.get(label, 0) / total if total else 0.0
            y -= high
            if high:
                bars.append(_bar(place, width, y, high, style))
    return bars


def _bar(place: int, width: float, y: float, high: float, style: str) -> Bar:
    return round(place * width, 1), round(y, 1), round(width - 1, 1), round(high, 1), style


def _unknowns(counts: Sequence[Mapping[str, int]], total: int) -> Chart:
    unknown = [of.get("unknown", 0) for of in counts]
    most, width = max(max(unknown), 1), _WIDE / len(counts)
    heights = [_HIGH * count / most for count in unknown]
    bars = [_bar(place, width, _HIGH - h, h, "f-wait") for place, h in enumerate(heights) if h]
    text = f"{format_count(total)} items became unknown, at most {format_count(most)} in one span"
    return Chart("Unknown items", format_count(most), text, bars)


def _line(samples: Sequence[tuple[float, float]], since_s: float, until_s: float, most: float) -> str:
    """Points of a polyline, the first at the left; seconds since 1970, and the values."""
    span, most = max(until_s - since_s, 1.0), max(most, 1.0)
    points = [(at, value) for at, value in samples if since_s <= at <= until_s]
    return " ".join(
        f"{_WIDE * (at - since_s) / span:.1f},{_HIGH - _HIGH * value / most:.1f}" for at, value in points
    )

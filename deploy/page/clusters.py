"""Clusters: the list of what waits for a name, and one of them with what a person does with it."""

import random
from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from deploy.access.guard import GuardedRoute
from deploy.access.roles import least
from deploy.page.visit import show, visitor
from deploy.server.memory import ClusterId
from deploy.server.services import Opened, Services
from memory.clusters.review import Listed, freshness, list_clusters, members_of
from memory.labels import history, label, labelled_counts, undo
from memory.records import IGNORE, REAL

router = APIRouter(route_class=GuardedRoute)

Order = Literal["typical", "farthest", "random"]
Look = Literal["pixels", "residual", "map"]
ORDERS: tuple[tuple[Order, str], ...] = (
    ("typical", "Most typical"),
    ("farthest", "Farthest"),
    ("random", "Random"),
)
LOOKS: tuple[tuple[Look, str], ...] = (("pixels", "Pixels"), ("residual", "Residual"), ("map", "Map"))
TILES, CARDS, _BESIDE, _LABELS = 24, 48, 40, 5
"""How many are shown: tiles of a cluster and clusters on a page, clusters beside one, labels below it."""

Page = Annotated[int, Query(ge=1, le=100_000)]


@router.get("/page/clusters", response_class=HTMLResponse, openapi_extra=least("viewer"))
def get_clusters(request: Request, services: Opened, page: Page = 1) -> HTMLResponse:
    """What waits for a name, in clusters."""
    listed = list_clusters(services.memory)
    labels = [entry for entry in history(services.memory) if entry.what][:1]
    shown, pages = _paged(listed, page, CARDS)
    context = {
        "clusters": [_card(cluster) for cluster in shown],
        "page": page,
        "pages": pages,
        "waiting": sum(len(cluster.members) for cluster in listed),
        "freshness": freshness(services.memory),
        "last_label": labels[0] if labels else None,
    }
    return show(request, services, "clusters.html.j2", "Clusters", context)


@router.get("/page/clusters/{cluster}", response_class=HTMLResponse, openapi_extra=least("viewer"))
def get_cluster(
    request: Request,
    services: Opened,
    cluster: ClusterId,
    order: Order = "typical",
    view: Look = "pixels",
    page: Page = 1,
) -> HTMLResponse:
    """One cluster: its items in pages, what is like it, and the forms by which a person decides."""
    return _cluster(request, services, cluster, order, view, page)


@router.post("/page/clusters/{cluster}", response_class=Response, openapi_extra=least("reviewer"))
def act(
    request: Request,
    services: Opened,
    cluster: ClusterId,
    do: Annotated[Literal["label", "ignore", "undo"], Form()],
    ids: Annotated[Sequence[str], Form()] = (),
    family: Annotated[str, Form(max_length=200)] = "",
    label_number: Annotated[int, Form(alias="label")] = 0,
    order: Annotated[Order, Form()] = "typical",
    view: Annotated[Look, Form()] = "pixels",
    page: Annotated[int, Form()] = 1,
) -> Response:
    """Name, ignore or undo; then back to where the form was. What is refused shows it again as it was."""
    request.state.again = lambda error, status: _cluster(
        request, services, cluster, order, view, page, chosen=ids, family=family, error=error, status=status
    )
    actor = visitor(request).name
    if do == "undo":
        undo(services.memory, label_number, actor)
    else:
        what = IGNORE if do == "ignore" else family.strip()
        label(services.memory, ids or [e.id for e in members_of(services.memory, cluster)], what, actor)
    left = any(True for _ in members_of(services.memory, cluster))
    return RedirectResponse(
        f"/page/clusters/{cluster}?order={order}&view={view}" if left else "/page/clusters", 303
    )


def _cluster(
    request: Request,
    services: Services,
    name: str,
    order: Order,
    view: Look,
    page: int,
    *,
    chosen: Sequence[str] = (),
    family: str = "",
    error: str | None = None,
    status: int = 200,
) -> HTMLResponse:
    members = members_of(services.memory, name)
    listed = list_clusters(services.memory)
    place = next((i for i, cluster in enumerate(listed) if cluster.id == name), None)
    found = Listed(name, (), 0.0, None, False) if place is None else listed[place]
    ordered = _ordered(members, order, name)
    shown, pages = _paged(ordered, page, TILES)
    labels = history(services.memory)[:_LABELS]
    views = [look for look, _ in LOOKS]
    with services.memory.read() as connection:
        families = sorted({count.family for count in labelled_counts(connection)} - {REAL})
    context = {
        "cluster": _card(found) | {"like_long": _like_long(found), "spread": found.spread or None},
        "size": len(members),
        "tiles": [
            {
                "id": e.id,
                "short": e.id.removeprefix("forgewatch."),
                "score": e.unknown_score,
                "picture": f"/page/pictures/{e.id}/{view}.png",
            }
            for e in shown
        ],
        "sources": Counter(e.source for e in members).most_common(),
        "releases": sorted({e.release for e in members if e.release}),
        "oldest": min((e.received_at for e in members), default=None),
        "near": [],
        "labels": labels,
        "to_undo": next((e.id for e in labels if e.what and not e.undone_by), None),
        "families": [REAL, IGNORE, *families],
        "beside": [_card(cluster) for cluster in _around(listed, place)],
        "previous": listed[place - 1].id if place else None,
        "next": listed[place + 1].id if place is not None and place + 1 < len(listed) else None,
        "place": "not in the list" if place is None else f"cluster {place + 1} of {len(listed)}",
        "orders": ORDERS,
        "order": order,
        "looks": LOOKS,
        "view": view,
        "next_view": views[(views.index(view) + 1) % len(views)],
        "page": page,
        "pages": pages,
        "chosen": set(chosen),
        "family": family,
        "error": error,
    }
    return show(request, services, "cluster.html.j2", "Clusters", context, status)


def _ordered(members: Sequence[Any], order: Order, name: str) -> Sequence[Any]:
    if order == "typical":
        return members
    if order == "farthest":
        return members[::-1]
    # An order of its own for each cluster, the same on each page.
    return random.Random(name).sample(members, len(members))  # noqa: S311 - an order, no secret


def _paged(items: Sequence[Any], page: int, size: int) -> tuple[Sequence[Any], int]:
    return items[(page - 1) * size : page * size], max(1, -(-len(items) // size))


def _around(listed: Sequence[Listed], place: int | None) -> Sequence[Listed]:
    start = max(0, min((place or 0) - _BESIDE // 2, len(listed) - _BESIDE))
    return listed[start : start + _BESIDE]


def _card(cluster: Listed) -> dict[str, Any]:
    return {
        "id": cluster.id,
        "size": len(cluster.members),
        "like": _like(cluster),
        "alarm": cluster.alarm,
        "pictures": [f"/page/pictures/{member}/pixels.png" for member in cluster.members[:4]],
    }


def _like(cluster: Listed) -> str:
    if cluster.alarm is not None:
        return "called real"
    if cluster.unclustered:
        return "fit nowhere"
    return f"like {cluster.resembles}" if cluster.resembles else "no known family"


def _like_long(cluster: Listed) -> str:
    if cluster.alarm is not None:
        return "called real, of a source that shifted"
    if cluster.unclustered:
        return "that fit nowhere, of many kinds"
    return f"like {cluster.resembles}" if cluster.resembles else "that no known family explains"

"""Clusters: the list of what waits for a name, and one of them with what a person does with it."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from deploy.access.guard import GuardedRoute
from deploy.access.roles import least
from deploy.page.visit import show, visitor
from deploy.server.clusters import MAX_LABEL_BYTES, ClusterId
from deploy.server.pictures import View
from deploy.server.services import Opened, Services
from memory.clusters.labelling import label_cluster
from memory.clusters.pages import Member, Order, facts_of, page_of
from memory.clusters.review import Listed, freshness, list_clusters
from memory.labels import history, label, labelled_counts, undo
from memory.records import IGNORE, REAL

router = APIRouter(route_class=GuardedRoute)

ORDERS: tuple[tuple[Order, str], ...] = (
    ("typical", "Most typical"),
    ("farthest", "Farthest"),
    ("random", "Random"),
)
LOOKS: tuple[tuple[View, str], ...] = (("pixels", "Pixels"), ("residual", "Residual"), ("map", "Map"))
TILES, CARDS, _BESIDE, _LABELS = 24, 48, 40, 5
"""How many are shown: tiles of a cluster and clusters on a page, clusters beside one, labels below it."""

Page = Annotated[int, Query(ge=1, le=100_000)]
Act = Literal["label", "ignore", "undo", "split", "merge", "undo edit"]


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
    view: View = "pixels",
    page: Page = 1,
) -> HTMLResponse:
    """One cluster: its items in pages, what is like it, and the forms by which a person decides."""
    return _cluster(request, services, cluster, order, view, page)


@router.post(
    "/page/clusters/{cluster}",
    response_class=Response,
    openapi_extra=least("reviewer"),
    max_body_size=MAX_LABEL_BYTES,
)
def act(
    request: Request,
    services: Opened,
    cluster: ClusterId,
    do: Annotated[Act, Form()],
    ids: Annotated[Sequence[str], Form()] = (),
    seen: Annotated[Sequence[str], Form(description="ids that the page showed")] = (),
    family: Annotated[str, Form(max_length=200)] = "",
    version: Annotated[str | None, Form(max_length=40)] = None,
    other: Annotated[str, Form(max_length=100, description="the cluster to merge with")] = "",
    number: Annotated[int, Form(description="of the label or the edit to undo")] = 0,
    order: Annotated[Order, Form()] = "typical",
    view: Annotated[View, Form()] = "pixels",
    page: Annotated[int, Form()] = 1,
) -> Response:
    """Name, ignore, split, merge or undo; then back to where the form was.

    What is refused shows the form again as it was.
    """
    request.state.again = lambda error, status: _cluster(
        request, services, cluster, order, view, page, chosen=ids, family=family, error=error, status=status
    )
    actor, to = visitor(request).name, cluster
    match do:
        case "label" | "ignore":
            what = IGNORE if do == "ignore" else family.strip()
            if ids:
                label(services.memory, list(ids), what, actor)
            else:
                label_cluster(services.memory, cluster, what, actor, version, seen)
        case "undo":
            undo(services.memory, number, actor)
        case "split" | "merge" | "undo edit":
            to = _edited(services, do, cluster, ids, version, other.strip(), number, actor)
    left = any(listed.id == to for listed in list_clusters(services.memory))
    return RedirectResponse(
        f"/page/clusters/{to}?order={order}&view={view}" if left else "/page/clusters", 303
    )


def _edited(
    services: Services,
    do: Literal["split", "merge", "undo edit"],
    cluster: str,
    ids: Sequence[str],
    version: str | None,
    other: str,
    number: int,
    actor: str,
) -> str:
    """Split, merge or undo one of these; return the cluster to show then."""
    from memory.clusters.edits import merge, split, undo_edit  # scikit-learn takes a second to load

    if do == "split":
        split(services.memory, cluster, ids, actor, version)
        return cluster
    if do == "merge":
        return merge(services.memory, [(cluster, version), (other, None)], actor).cluster
    return next(iter(undo_edit(services.memory, number, actor).taken_from), cluster)


def _cluster(
    request: Request,
    services: Services,
    name: str,
    order: Order,
    view: View,
    page: int,
    *,
    chosen: Sequence[str] = (),
    family: str = "",
    error: str | None = None,
    status: int = 200,
) -> HTMLResponse:
    found = page_of(services.memory, name, order, (page - 1) * TILES, TILES)
    facts = facts_of(services.memory, found.cluster.members)
    listed = list_clusters(services.memory)
    place = next((i for i, cluster in enumerate(listed) if cluster.id == name), None)
    labels = history(services.memory)[:_LABELS]
    views = [look for look, _ in LOOKS]
    with services.memory.read() as connection:
        families = sorted({count.family for count in labelled_counts(connection)} - {REAL})
    shown = found.cluster
    described = (
        Listed(name, shown.members, shown.version, None, None, False) if place is None else listed[place]
    )
    context = {
        "cluster": _card(described) | {"like_long": _like_long(described), "spread": shown.spread or None},
        "version": shown.version,
        "edit": shown.edit,
        "size": found.size,
        "tiles": [_tile(member, view) for member in found.members],
        "sources": facts.sources.most_common(),
        "releases": facts.releases,
        "oldest": facts.oldest_ms,
        "near": [],
        "labels": labels,
        "to_undo": next((e.id for e in labels if e.what and not e.undone_by), None),
        "families": [REAL, IGNORE, *families],
        "beside": [_card(cluster) for cluster in _around(listed, place)],
        "others": [cluster.id for cluster in listed if cluster.id != name and cluster.alarm is None],
        "previous": listed[place - 1].id if place else None,
        "next": listed[place + 1].id if place is not None and place + 1 < len(listed) else None,
        "place": "not in the list" if place is None else f"cluster {place + 1} of {len(listed)}",
        "orders": ORDERS,
        "order": order,
        "looks": LOOKS,
        "view": view,
        "next_view": views[(views.index(view) + 1) % len(views)],
        "page": page,
        "pages": max(1, -(-found.size // TILES)),
        "chosen": set(chosen),
        "family": family,
        "error": error,
    }
    return show(request, services, "cluster.html.j2", "Clusters", context, status)


def picture_of(exemplar: str, view: View = "pixels") -> str:
    """Where an exemplar's picture is."""
    return f"/exemplars/{quote(exemplar, safe='')}/picture.png?view={view}"


def _tile(member: Member, view: View) -> dict[str, Any]:
    id_ = member.exemplar.id
    return {
        "id": id_,
        "short": id_.removeprefix("forgewatch."),
        "score": member.exemplar.unknown_score,
        # What has no map is shown as it is.
        "picture": picture_of(id_, "pixels" if view == "map" and not member.has_map else view),
    }


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
        "pictures": [picture_of(member) for member in cluster.members[:4]],
        "made": cluster.edit is not None,
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

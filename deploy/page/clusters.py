"""Clusters: the review queue, one cluster with its items, and a person's acts on it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from deploy.access.guard import GuardedRoute
from deploy.access.roles import least
from deploy.page.render import file_name
from deploy.page.visit import show, visitor
from deploy.server.clusters import MAX_LABEL_BYTES, MAX_MARKS, ClusterId, Mark, no_maps
from deploy.server.pictures import View
from deploy.server.services import Opened, Services
from memory.clusters.pages import facts_of, members, order_members
from memory.clusters.review import cluster_in_list, freshness, label_cluster, list_clusters
from memory.clusters.similarity import nearest_known
from memory.clusters.views import edit_history
from memory.contradictions import same_bytes
from memory.declarations import count_missed, missed_exemplars
from memory.index.shared_index import IndexBusyError
from memory.labels import history, label, undo
from memory.records import IGNORE, REAL, ClusterMember, ClusterView, EditEntry, LabelEntry, SameBytes
from memory.rows import counts
from memory.store import ExemplarMemoryError

Order = Literal["typical", "farthest", "random", "alike", "same bytes"]
ORDERS: tuple[tuple[Order, str], ...] = (
    ("typical", "Central"),
    ("farthest", "Outliers"),
    ("random", "Random"),
)
LOOKS: tuple[tuple[View, str], ...] = (("pixels", "Pixels"), ("residual", "Residual"), ("map", "Map"))
TILES, _BESIDE, _ACTS, _NEAR = 24, 40, 5, 6
"""How many are shown: tiles of a page, clusters beside one, acts and known exemplars below them."""


@dataclass(frozen=True)
class ViewOptions:
    """Where somebody looks. marks: marked items, of the order by likeness to them."""

    order: Order = "typical"
    view: View = "pixels"
    page: int = 1
    marks: tuple[str, ...] = ()

    @property
    def query(self) -> str:
        return f"{self.of_pages}&page={self.page}"

    @property
    def of_pages(self) -> str:
        marks = self.marks if self.order == "alike" else ()
        like = [("like", mark) for mark in marks]
        return urlencode([("order", self.order), ("view", self.view), *like])


@dataclass(frozen=True)
class FormState:
    """The state of a refused form: the tiles that were selected, the name that was typed, and why."""

    chosen: Sequence[str] = ()
    family: str = ""
    same: SameBytes = "refuse"
    error: str | None = None
    status: int = 200


def show_cluster(
    request: Request, services: Services, name: str, look: ViewOptions, kept: FormState = FormState()
) -> HTMLResponse:
    """The view of one cluster. Raises UnknownClusterError, NothingMarkedError, IndexBusyError."""
    cluster, listed = cluster_in_list(services.memory, name)
    try:
        ids = order_of(services, cluster.members, look)
    except ExemplarMemoryError:
        if kept.error is None:
            raise
        # What was marked is gone, or the index is: that must not hide why the form was refused.
        look = ViewOptions(view=look.view)
        ids = order_of(services, cluster.members, look)
    pages = max(1, -(-len(ids) // TILES))
    look = replace(look, page=min(look.page, pages))
    with services.memory.read() as connection:
        tiles = members(connection, ids[(look.page - 1) * TILES : look.page * TILES])
        twins = {own: (other, called) for own, other, called in same_bytes(connection, cluster.members)}
        families = sorted({str(family) for _, family in counts(connection) if family} - {REAL})
    facts = facts_of(services.memory, cluster.members)
    no_map = no_maps(services, facts.releases) if look.view == "map" else None
    context = {
        "cluster": card(cluster),
        "version": cluster.version,
        "edit": cluster.edit,
        "size": len(cluster.members),
        "declared": cluster.declared,
        "declaration": cluster.declaration,
        "tiles": [_tile(member, "pixels" if no_map else look.view, twins) for member in tiles],
        "no_map": no_map,
        "twins": len(twins),
        "same": kept.same,
        "facts": facts,
        "near": _near(services, cluster.members),
        "families": [REAL, IGNORE, *families],
        "chosen": {*kept.chosen, *look.marks},
        "family": kept.family,
        "error": kept.error,
    }
    return show(
        request,
        services,
        "cluster.html.j2",
        "Review queue",
        context | _acts(services) | _ways(listed, name) | _looks(look, pages),
        kept.status,
    )


def order_of(services: Services, ids: Sequence[str], look: ViewOptions) -> Sequence[str]:
    """The members of a cluster, by id, as somebody looks at them."""
    if look.order == "same bytes":
        with services.memory.read() as connection:
            twins = {own for own, _, _ in same_bytes(connection, ids)}
        return [id_ for id_ in ids if id_ in twins]
    if look.order != "alike":
        return order_members(ids, look.order, 0)
    from memory.clusters.similarity import alike  # scikit-learn takes a second to load

    return alike(services.memory, services.shared_index, ids, look.marks)


def _ways(listed: Sequence[ClusterView], name: str) -> dict[str, Any]:
    """The clusters beside one, and those to go to from it."""
    place = next((i for i, cluster in enumerate(listed) if cluster.id == name), None)
    start = max(0, min((place or 0) - _BESIDE // 2, len(listed) - _BESIDE))
    return {
        "beside": [card(cluster) for cluster in listed[start : start + _BESIDE]],
        "others": [cluster.id for cluster in listed if cluster.id != name and cluster.alarm is None],
        "previous": listed[place - 1].id if place else None,
        "next": listed[place + 1].id if place is not None and place + 1 < len(listed) else None,
        "place": "not in the list" if place is None else f"cluster {place + 1} of {len(listed)}",
    }


def _looks(look: ViewOptions, pages: int) -> dict[str, Any]:
    """The ways to look at the same cluster."""
    views = [view for view, _ in LOOKS]
    return {
        "look": look,
        "pages": pages,
        "page_link": f"?{look.of_pages}&",
        "orders": [(order, title, replace(look, order=order, page=1).query) for order, title in ORDERS],
        "looks": [(view, title, replace(look, view=view).query) for view, title in LOOKS],
        "next_view": views[(views.index(look.view) + 1) % len(views)],
        "so_far": look.page * TILES,
    }


def _near(services: Services, ids: Sequence[str]) -> list[dict[str, Any]] | None:
    """The nearest labelled exemplars; None while the index is being read."""
    try:
        neighbours = nearest_known(services.memory, services.shared_index, ids, _NEAR)
    except IndexBusyError:
        return None
    return [{**dict(known), "picture": picture_of(known.id)} for known in neighbours]


def _acts(services: Services) -> dict[str, Any]:
    """The newest labels and edits, and which of them can be undone here: the newest that stands."""
    done: list[tuple[str, int, LabelEntry | EditEntry]] = [
        *(("undo", entry.label, entry) for entry in history(services.memory)[:_ACTS]),
        *(("undo edit", entry.edit, entry) for entry in edit_history(services.memory, _ACTS)),
    ]
    acts = sorted(done, key=lambda act: act[2].at, reverse=True)[:_ACTS]
    standing = (f"{undo} {number}" for undo, number, entry in acts if entry.what and not entry.undone_by)
    return {"acts": acts, "to_undo": next(standing, None)}


def picture_of(exemplar: str, view: View = "pixels") -> str:
    return f"/exemplars/{quote(exemplar, safe='')}/picture.png?view={view}"


def _tile(member: ClusterMember, view: View, twins: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    id_ = member.id
    return {
        "id": id_,
        "twin": twins.get(id_),
        "name": file_name(member.media_id),
        "source": member.source,
        "declares": member.declares and (member.generator or "no name"),
        "short": id_.removeprefix("forgewatch."),
        "score": member.unknown_score,
        # What has no map is shown as it is.
        "picture": picture_of(id_, "pixels" if view == "map" and not member.has_map else view),
    }


def card(cluster: ClusterView) -> dict[str, Any]:
    """A cluster in a list of them."""
    return {
        "id": cluster.id,
        "size": len(cluster.members),
        "like": f"{_like(cluster)} · {cluster.sources} source{'' if cluster.sources == 1 else 's'}",
        "alarm": cluster.alarm,
        "pictures": [picture_of(member) for member in cluster.members[:4]],
    }


def _like(cluster: ClusterView) -> str:
    if cluster.alarm is not None:
        return "called real, of a source that shifted"
    if cluster.unclustered:
        return "ungrouped"
    return f"like {cluster.resembles}" if cluster.resembles else "no similar known family"


router = APIRouter(route_class=GuardedRoute)

_CARDS = 48
"""Clusters on a page of the list."""

Page = Annotated[int, Query(ge=1, le=100_000)]
Act = Literal[
    "label", "declared", "ignore", "keep", "undo", "split", "split first", "merge", "undo edit", "alike"
]


@router.get("/page/clusters", response_class=HTMLResponse, openapi_extra=least("viewer"))
def get_clusters(request: Request, services: Opened, page: Page = 1) -> HTMLResponse:
    """What waits for a name, in clusters."""
    listed = list_clusters(services.memory)
    labels = [entry for entry in history(services.memory) if entry.what][:1]
    context = {
        "clusters": [card(cluster) for cluster in listed[(page - 1) * _CARDS : page * _CARDS]],
        "page": page,
        "pages": max(1, -(-len(listed) // _CARDS)),
        "waiting": sum(len(cluster.members) for cluster in listed),
        "freshness": freshness(services.memory),
        "last_label": labels[0] if labels else None,
    }
    with services.memory.read() as connection:
        context["missed"] = count_missed(connection)
    return show(request, services, "clusters.html.j2", "Review queue", context)


@router.get("/page/misses", response_class=HTMLResponse, openapi_extra=least("viewer"))
def get_misses(request: Request, services: Opened) -> HTMLResponse:
    """The newest items that the pixels called real, whose files declare a generative model."""
    return _show_misses(request, services, FormState())


def _show_misses(request: Request, services: Services, kept: FormState) -> HTMLResponse:
    with services.memory.read() as connection:
        newest = missed_exemplars(connection, TILES)
        tiles = [_tile(member, "pixels", {}) for member in members(connection, [item.id for item in newest])]
        context = {"tiles": tiles, "count": count_missed(connection), "kept": kept, "error": kept.error}
    return show(request, services, "misses.html.j2", "Review queue", context, kept.status)


@router.post(
    "/page/misses", response_class=Response, openapi_extra=least("reviewer"), max_body_size=MAX_LABEL_BYTES
)
def label_misses(
    request: Request,
    services: Opened,
    ids: Annotated[Sequence[str], Form()] = (),
    family: Annotated[str, Form(max_length=200)] = "",
) -> Response:
    """Label the selected missed items; what is refused shows the form again as it was."""
    request.state.again = lambda error, status: _show_misses(
        request, services, FormState(ids, family, error=error, status=status)
    )
    label(services.memory, list(ids), family.strip(), visitor(request).name)
    return RedirectResponse("/page/misses", 303)


@router.get("/page/clusters/{cluster}", response_class=HTMLResponse, openapi_extra=least("viewer"))
def get_cluster(
    request: Request,
    services: Opened,
    cluster: ClusterId,
    order: Order = "typical",
    view: View = "pixels",
    page: Page = 1,
    like: Annotated[Sequence[Mark], Query(max_length=MAX_MARKS, description="the marked")] = (),
) -> HTMLResponse:
    """One cluster: its items in pages, what is like it, and the forms by which a person decides."""
    return show_cluster(request, services, cluster, ViewOptions(order, view, page, tuple(like)))


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
    same: Annotated[SameBytes, Form(description="where the same bytes are called another class")] = "refuse",
    version: Annotated[str | None, Form(max_length=40)] = None,
    other: Annotated[str, Form(max_length=100, description="the cluster to merge with")] = "",
    number: Annotated[int, Form(description="of the label or the edit to undo")] = 0,
    first: Annotated[int, Form(ge=0, description="how many to split off, in the order shown")] = 0,
    order: Annotated[Order, Form()] = "typical",
    view: Annotated[View, Form()] = "pixels",
    page: Annotated[int, Form(ge=1, le=100_000)] = 1,
    like: Annotated[Sequence[Mark], Form(max_length=MAX_MARKS)] = (),
) -> Response:
    """Name, ignore, split, merge, undo, or show what is like the selected; then back to where the form was.

    What is refused shows the form again as it was.
    """
    look, to = ViewOptions(order, view, page, tuple(like)), cluster
    request.state.again = lambda error, status: show_cluster(
        request, services, cluster, look, FormState(ids, family, same, error, status)
    )
    actor = visitor(request).name
    match do:
        case "alike":
            return RedirectResponse(f"/page/clusters/{cluster}?{_alike(look, ids, seen).query}", 303)
        case "label" | "declared" | "ignore":
            name = IGNORE if do == "ignore" else family.strip()
            if ids:
                label(services.memory, list(ids), name, actor, same)
            else:
                declared = do == "declared"
                label_cluster(services.memory, cluster, name, actor, version, seen, same, declared)
        case "keep":
            members = cluster_in_list(services.memory, cluster)[0].members
            label(services.memory, list(ids) or members, None, actor, "keep")
        case "undo":
            undo(services.memory, number, actor)
        case "split" | "split first":
            _split(services, cluster, ids, version, actor, look, first if do == "split first" else None)
        case "merge" | "undo edit":
            to = _edit_cluster(services, cluster, version, other.strip(), number, actor)
    if all(listed.id != to for listed in list_clusters(services.memory)):
        return RedirectResponse("/page/clusters", 303)
    # What was marked may be gone.
    back = (
        look if look.order in ("typical", "farthest", "random") and to == cluster else ViewOptions(view=view)
    )
    return RedirectResponse(f"/page/clusters/{to}?{back.query}", 303)


def _alike(look: ViewOptions, ids: Sequence[str], seen: Sequence[str]) -> ViewOptions:
    """Return the view of items like the selected, and like those marked on other pages."""
    marks = dict.fromkeys([*ids, *(mark for mark in look.marks if mark not in seen)])
    return ViewOptions("alike", look.view, 1, tuple(marks)[:MAX_MARKS])


def _split(
    services: Services,
    cluster: str,
    ids: Sequence[str],
    version: str | None,
    actor: str,
    look: ViewOptions,
    first: int | None,
) -> None:
    """Split off the selected, or the first so many in the order shown."""
    from memory.clusters.edits import split  # scikit-learn takes a second to load

    if first is not None:
        ids = order_of(services, cluster_in_list(services.memory, cluster)[0].members, look)[:first]
    split(services.memory, cluster, ids, actor, version)


def _edit_cluster(
    services: Services, cluster: str, version: str | None, other: str, number: int, actor: str
) -> str:
    """Undo the edit of this number, or without one merge; return the cluster to show then."""
    from memory.clusters.edits import merge, undo_edit

    if number:
        return next(iter(undo_edit(services.memory, number, actor).taken_from), cluster)
    return merge(services.memory, [(cluster, version), (other, None)], actor).cluster

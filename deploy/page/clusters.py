"""Clusters: the list of what waits for a name, and what a person does with one of them."""

from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Form, Query, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from deploy.access.guard import GuardedRoute
from deploy.access.roles import least
from deploy.page.cluster import FormState, Order, ViewOptions, card, order_of, show_cluster
from deploy.page.visit import show, visitor
from deploy.server.clusters import MAX_LABEL_BYTES, MAX_MARKS, ClusterId, Mark
from deploy.server.pictures import View
from deploy.server.services import Opened, Services
from memory.clusters.review import cluster_in_list, freshness, label_cluster, list_clusters
from memory.labels import history, label, undo
from memory.records import IGNORE, SameBytes

router = APIRouter(route_class=GuardedRoute)

_CARDS = 48
"""Clusters on a page of the list."""

Page = Annotated[int, Query(ge=1, le=100_000)]
Act = Literal["label", "ignore", "keep", "undo", "split", "split first", "merge", "undo edit", "alike"]


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
    return show(request, services, "clusters.html.j2", "Review queue", context)


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
        case "label" | "ignore":
            what = IGNORE if do == "ignore" else family.strip()
            if ids:
                label(services.memory, list(ids), what, actor, same)
            else:
                label_cluster(services.memory, cluster, what, actor, version, seen, same)
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
    """Return the look at what is like the selected, and like what was marked on other pages."""
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

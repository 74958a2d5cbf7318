"""One cluster, as it is shown: its items in pages, what is like it, and what was done last."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal
from urllib.parse import quote, urlencode

from fastapi import Request
from fastapi.responses import HTMLResponse

from deploy.page.render import file_name
from deploy.page.visit import show
from deploy.server.clusters import no_maps
from deploy.server.pictures import View
from deploy.server.services import Services
from memory.clusters.edit_history import Edit, edit_history
from memory.clusters.pages import Member, facts_of, members, order_members
from memory.clusters.review import cluster_in_list
from memory.clusters.similarity import nearest_known
from memory.clusters.views import ClusterView
from memory.contradictions import same_bytes
from memory.index.shared_index import IndexBusyError
from memory.labels import LabelRecord, history
from memory.records import IGNORE, REAL, SameBytes
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
    """Where somebody looks. marks: what is marked, of the order by likeness to it."""

    order: Order = "typical"
    view: View = "pixels"
    page: int = 1
    marks: tuple[str, ...] = ()

    @property
    def query(self) -> str:
        """This as an address has it."""
        return f"{self.of_pages}&page={self.page}"

    @property
    def of_pages(self) -> str:
        """The same without the page."""
        marks = self.marks if self.order == "alike" else ()
        like = [("like", mark) for mark in marks]
        return urlencode([("order", self.order), ("view", self.view), *like])


@dataclass(frozen=True)
class FormState:
    """What a refused form keeps: the tiles that were selected, the name that was typed, and why."""

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
        return [one for one in ids if one in twins]
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
        found = nearest_known(services.memory, services.shared_index, ids, _NEAR)
    except IndexBusyError:
        return None
    return [
        {"id": known.id, "family": known.family, "distance": known.distance, "picture": picture_of(known.id)}
        for known in found
    ]


def _acts(services: Services) -> dict[str, Any]:
    """The newest labels and edits, and which of them can be undone here: the newest that stands."""
    done: list[tuple[str, LabelRecord | Edit]] = [
        *(("undo", label) for label in history(services.memory)[:_ACTS]),
        *(("undo edit", edit) for edit in edit_history(services.memory, _ACTS)),
    ]
    newest = sorted(done, key=lambda act: act[1].at_ms, reverse=True)
    standing = (f"{undo} {entry.id}" for undo, entry in newest if entry.what and not entry.undone_by)
    acts = [{"undo": undo, "entry": entry} for undo, entry in newest[:_ACTS]]
    return {"acts": acts, "to_undo": next(standing, None)}


def picture_of(exemplar: str, view: View = "pixels") -> str:
    """Where an exemplar's picture is."""
    return f"/exemplars/{quote(exemplar, safe='')}/picture.png?view={view}"


def _tile(member: Member, view: View, twins: Mapping[str, tuple[str, str]]) -> dict[str, Any]:
    id_ = member.exemplar.id
    return {
        "id": id_,
        "twin": twins.get(id_),
        "name": file_name(member.media_id),
        "source": member.exemplar.source,
        "short": id_.removeprefix("forgewatch."),
        "score": member.exemplar.unknown_score,
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

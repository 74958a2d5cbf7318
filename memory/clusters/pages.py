"""All members of a cluster, in pages and in an order that stays while some of them leave."""

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from sqlalchemy import Connection, func, select

from memory.clusters.views import load_cluster
from memory.crops.crop_store import CropsMissingError, CropStore, Views
from memory.records import ClusterMember, ClusterMembers, ClusterView
from memory.rows import exemplars_of, rows_among
from memory.schema import exemplars
from memory.store import Store

Order = Literal["typical", "farthest", "random"]
"""typical: the nearest to the medoid first. farthest: the other way round. random: by a seed."""


_LOOKED_AT = 2000


@dataclass(frozen=True)
class MemberFacts:
    """Facts of some exemplars together: the count of each source, the releases that judged them.

    items counts those that were looked at: all, or of very many an even share.
    """

    items: int
    sources: Counter[str]
    releases: tuple[str, ...]
    oldest_ms: int | None


def facts_of(store: Store, ids: Sequence[str]) -> MemberFacts:
    """Return the facts of some exemplars together. Raises StoreUnavailableError."""
    looked_at = ids[:: -(-len(ids) // _LOOKED_AT) or 1]
    by = exemplars.c.source, exemplars.c.release
    query = select(*by, func.count().label("items"), func.min(exemplars.c.received_ms).label("first"))
    sources = Counter[str]()
    with store.read() as connection:
        rows = list(rows_among(connection, query.group_by(*by), exemplars.c.id, looked_at))
    for row in rows:
        sources[row.source] += row.items
    releases = tuple(sorted({row.release for row in rows if row.release}))
    return MemberFacts(len(looked_at), sources, releases, min((row.first for row in rows), default=None))


def page_of(store: Store, name: str, order: Order, offset: int, limit: int, seed: int = 0) -> ClusterMembers:
    """Return a page of a cluster's members. Raises UnknownClusterError or StoreUnavailableError."""
    with store.read() as connection:
        cluster = load_cluster(connection, name)
        return page_in_order(connection, cluster, order_members(cluster.members, order, seed), offset, limit)


def page_in_order(
    connection: Connection, cluster: ClusterView, ids: Sequence[str], offset: int, limit: int
) -> ClusterMembers:
    """Return a page of a cluster whose members are in this order. Raises UnknownExemplarError."""
    page = members(connection, ids[offset : offset + limit])
    state = {"cluster": cluster.id, "version": cluster.version, "size": cluster.size}
    return ClusterMembers(**state, offset=offset, members=page)


def order_members(ids: Sequence[str], order: Order, seed: int) -> Sequence[str]:
    """Return ids, the most typical first, in another order; each keeps its place as others leave."""
    if order == "random":
        return sorted(ids, key=lambda i: hashlib.sha256(f"{seed}:{i}".encode()).digest())
    return ids if order == "typical" else ids[::-1]


def members(connection: Connection, ids: Sequence[str]) -> list[ClusterMember]:
    """Return few exemplars as they are shown. Raises UnknownExemplarError."""
    columns = exemplars.c.id, exemplars.c.crop_count, exemplars.c.crops_digest, exemplars.c.verdict
    rows = {row.id: row for row in connection.execute(select(*columns).where(exemplars.c.id.in_(ids)))}
    verdicts = {id_: json.loads(row.verdict or "{}") for id_, row in rows.items()}
    return [
        ClusterMember(
            **dict(exemplar),
            crops=rows[exemplar.id].crop_count if exemplar.crops_digest else 0,
            has_map=verdicts[exemplar.id].get("map") is not None,
            media_id=verdicts[exemplar.id].get("item", {}).get("media_id"),
        )
        for exemplar in exemplars_of(connection, ids)
    ]


def views_of(store: Store, crops: CropStore, exemplar: str) -> tuple[str | None, Views]:
    """Return the verdict of an exemplar, as JSON, and its stored views.

    Raises UnknownExemplarError, CropsMissingError (also where they were purged), CropsDamagedError,
    CropsUnavailableError or StoreUnavailableError.
    """
    with store.read() as connection:
        (item,) = exemplars_of(connection, [exemplar])
        verdict = connection.scalar(select(exemplars.c.verdict).where(exemplars.c.id == exemplar))
    if item.crops_digest is None:
        raise CropsMissingError(f"the crops of {exemplar} were purged")
    return verdict, crops.load_views(item.crops_digest)

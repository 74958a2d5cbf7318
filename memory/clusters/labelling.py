"""A label for all that was seen of a cluster, with how much of it was looked at."""

from collections.abc import Collection

from memory.clusters.shown import members_at_version, newest_act
from memory.labels import LabelError, give
from memory.records import SameBytes
from memory.store import Store


def label_cluster(
    store: Store,
    cluster: str,
    what: str,
    actor: str,
    version: str | None = None,
    looked_at: Collection[str] | None = None,
    same: SameBytes = "refuse",
) -> tuple[int, list[str]]:
    """Call what was seen of a cluster a family, real or ignore; return the label's number and the items.

    All of them or none. version is the state of the cluster that was seen, and looked_at the ids of those
    that were before the giver's eyes: how many of the items they are is kept with the label. Raises
    ClusterChangedError, UnknownClusterError, LabelError or StoreUnavailableError.
    """
    with store.write() as connection:
        ids = members_at_version(connection, cluster, version)
        if not ids:
            act = newest_act(connection, cluster)
            raise LabelError(f"nothing of cluster {cluster} waits any more: {act}")
        looked = None if looked_at is None else len(set(looked_at).intersection(ids))
        return give(connection, ids, what, actor, same, f"cluster {cluster}", looked), ids

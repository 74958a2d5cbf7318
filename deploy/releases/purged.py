"""No release goes on its way that was made of items which left the memory since."""

from deploy.releases.artifacts import ArtifactStore
from deploy.releases.four_eyes import ApprovalError
from detector.release.artifact import SNAPSHOT
from memory.purge import emptied_among, purged_sources
from memory.store import Store
from updater.candidate.snapshot import Snapshot


def require_kept(memory: Store, artifacts: ArtifactStore, digest: str) -> None:
    """Raise ApprovalError where a release was made of items that were purged since.

    Its bytes were compared with their digests before. Raises StoreError, SnapshotError.
    """
    with memory.read() as connection:
        sources = purged_sources(connection)
        if not sources:
            return
    snapshot = Snapshot(b"".join(artifacts.read(digest, SNAPSHOT).pieces))
    ids = [row.exemplar for row in snapshot if row.source in sources]
    with memory.read() as connection:
        gone = emptied_among(connection, ids)
    if gone:
        raise ApprovalError(
            f"it was made of {gone} items that were purged since: ask for a new update (`forgewatch update`)"
        )

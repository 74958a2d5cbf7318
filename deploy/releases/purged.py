"""What a release may go live by: its bytes in the store, and what was purged of that it was made of."""

from dataclasses import replace

from deploy.releases.artifacts import ArtifactStore
from deploy.releases.evidence import Evidence, EvidenceError
from detector.release.artifact import SNAPSHOT
from memory.purge import emptied_among, purged_sources
from memory.store import Store
from updater.candidate.snapshot import Snapshot, SnapshotError


def find_evidence(memory: Store, artifacts: ArtifactStore, digest: str) -> Evidence:
    """What lies in the store now, which asks the memory what was purged once somebody wants to know.

    Raises StoreError; its `purged` also EvidenceError and StoreUnavailableError.
    """
    evidence = artifacts.evidence(digest)

    def purged_count() -> int:
        with memory.read() as connection:
            sources = purged_sources(connection)
            if evidence.snapshot is None or not sources:
                return 0
        try:
            rows = list(Snapshot(b"".join(artifacts.read(digest, SNAPSHOT).pieces)))
        except SnapshotError as error:
            raise EvidenceError(f"release {digest[:12]}: {error}") from error
        with memory.read() as connection:
            return emptied_among(connection, [row.exemplar for row in rows if row.source in sources])

    return replace(evidence, purged=purged_count)

"""What the walks go over: releases with their files, the memory, the verdicts' places."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from deploy.lineage.records import VerdictRef
from deploy.release_records import LedgerEntry, Release
from deploy.releases.artifacts import ArtifactStore
from deploy.releases.evaluations import Evaluations
from deploy.releases.evidence import EvidenceError
from detector.release.artifact import MANIFEST, SNAPSHOT
from detector.release.manifest import ArtifactError, read_manifest
from ingest.settings import IngestSettings
from memory.store import Store
from memory.verdict_index import VerdictPlace, count_verdicts, newest_verdicts
from updater.candidate.snapshot import Snapshot, SnapshotError
from updater.evaluation_parts import MadeOf
from updater.runs import RunTable

NEWEST = 20
"""verdicts of a release that are listed"""


@dataclass(frozen=True)
class Ground:
    """All that a walk reads, as of one request."""

    releases: Mapping[str, Release]
    """by digest, in the order in which they were first proposed"""
    history: Mapping[str, tuple[LedgerEntry, ...]]
    """every move of each release, oldest first"""
    artifacts: ArtifactStore
    evaluations: Evaluations
    memory: Store
    runs: RunTable
    ingest: IngestSettings
    kafka_timeout_s: float

    def made_of(self, release: Release) -> MadeOf | None:
        """Return what a release was made of; None of one from before there were snapshots.

        Raises StoreError and EvidenceError.
        """
        return self.evaluations.of(release).made_of

    def snapshot(self, digest: str) -> Snapshot | None:
        """Return a release's training snapshot; None of one from before there were any.

        Raises StoreError, and EvidenceError where the stored bytes are not the release's.
        """
        manifest = self._file(digest, MANIFEST)
        if hashlib.sha256(manifest).hexdigest() != digest:
            raise EvidenceError(f"the stored manifest of {digest} is not its own")
        try:
            expected = read_manifest(manifest).files.get(SNAPSHOT)
            if expected is None:
                return None
            data = self._file(digest, SNAPSHOT)
            if hashlib.sha256(data).hexdigest() != expected:
                raise EvidenceError(f"the stored training snapshot of {digest} is not its own")
            return Snapshot(data)
        except (ArtifactError, SnapshotError) as error:
            raise EvidenceError(f"release {digest}: {error}") from error

    def parents(self, release: Release) -> list[Release]:
        """Return the releases that a release was trained from, the nearest first."""
        found: list[Release] = []
        while (parent := self.releases.get(release.candidate.parent or "")) and parent not in found:
            found.append(release := parent)
        return found

    def verdicts_of(self, digest: str) -> tuple[Mapping[str, int], tuple[VerdictRef, ...]]:
        """Return how many verdicts of a release the topic has, by label, and the newest of them.

        Raises StoreUnavailableError.
        """
        with self.memory.read() as connection:
            places = newest_verdicts(connection, NEWEST, digest)
            return count_verdicts(connection, digest), tuple(map(self.ref, places))

    def ref(self, place: VerdictPlace) -> VerdictRef:
        """Return a verdict in short."""
        return VerdictRef(
            id=f"{self.ingest.media_topic}-{place.item_partition}-{place.item_offset}",
            at=datetime.fromtimestamp(place.at_ms / 1000, UTC),
            label=place.label,
            source=place.source,
            release=place.release,
        )

    def _file(self, digest: str, name: str) -> bytes:
        return b"".join(self.artifacts.read(digest, name).pieces)

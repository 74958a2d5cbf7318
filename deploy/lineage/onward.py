"""From a label, a source or an exemplar on: the releases that it went into, and their verdicts.

`Ground` is what every walk goes over: releases with their files, the memory, the verdicts' places.
"""

import hashlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TypedDict

from deploy.lineage.records import ExemplarLineage, LabelLineage, Learner, SourceLineage, VerdictRef
from deploy.release_records import LedgerEntry, Release
from deploy.releases.artifacts import ArtifactStore
from deploy.releases.evidence import Evaluations, EvidenceError
from detector.release.artifact import MANIFEST, SNAPSHOT
from detector.release.manifest import ArtifactError, read_manifest
from ingest.settings import IngestSettings
from memory.labels import history, labels_of
from memory.records import Exemplar, LabelEntry
from memory.rows import UnknownExemplarError, count_by, exemplars_of, utc_time
from memory.schema import exemplars, labelled
from memory.sources import is_of
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
        """Return the training snapshot of a release; None of one from before there were snapshots.

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
        ancestors: list[Release] = []
        while (parent := self.releases.get(release.candidate.parent or "")) and parent not in ancestors:
            ancestors.append(release := parent)
        return ancestors

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
            at=utc_time(place.at_ms),
            label=place.label,
            source=place.source,
            release=place.release,
        )

    def _file(self, digest: str, name: str) -> bytes:
        return b"".join(self.artifacts.read(digest, name).pieces)


def label_entries(store: Store) -> dict[int, LabelEntry]:
    """Return every label and undo by its number, the newest first. Raises StoreUnavailableError."""
    return {entry.label: entry for entry in history(store)}


ItemsIn = Callable[[Release, MadeOf], Mapping[str, int]]
"""How many exemplars of something a release's snapshot has, by split."""


class UnknownLineageError(Exception):
    """Nothing is known of the subject. Fatal for the request."""


class _Onward(TypedDict):
    releases: tuple[Learner, ...]
    unsaid: tuple[str, ...]


def of_label(ground: Ground, number: int) -> LabelLineage:
    """Walk on from a label. Raises UnknownLineageError, and the errors of `learners`."""
    entry = label_entries(ground.memory).get(number)
    if entry is None or entry.what is None:
        raise UnknownLineageError(f"there is no label {number}; `forgewatch labels` lists them")
    return LabelLineage(label=entry, **learners(ground, lambda _, made: made.labels.get(number, {})))


def of_source(ground: Ground, source: str) -> SourceLineage:
    """Walk on from a source. Raises UnknownLineageError, and the errors of `learners`."""
    here = is_of(source)
    with ground.memory.read() as connection:
        kept = count_by(connection, exemplars.c.shelf, here)
        numbers = labels_of(connection, here)
    answer = learners(ground, lambda _, made: made.sources.get(source, {}))
    if not kept and not answer["releases"]:
        raise UnknownLineageError(f"no exemplar and no release's snapshot is of the source {source!r}")
    entries = label_entries(ground.memory)
    return SourceLineage(
        source=source,
        exemplars=kept,
        labels=tuple(entry for number, entry in entries.items() if number in numbers),
        **answer,
    )


def of_exemplar(ground: Ground, exemplar: str) -> ExemplarLineage:
    """Walk on from an exemplar. Raises UnknownLineageError, and the errors of `learners`."""
    row: Exemplar | None = None
    with ground.memory.read() as connection:
        with suppress(UnknownExemplarError):
            (row,) = exemplars_of(connection, [exemplar])
        numbers = labels_of(connection, labelled.c.exemplar == exemplar)

    def items(release: Release, made: MadeOf) -> Mapping[str, int]:
        # A snapshot is read only where it has a label that the exemplar bore, or nothing is known of these.
        if row is not None and not numbers.keys() & made.labels.keys():
            return {}
        snapshot = ground.snapshot(release.digest)
        line = snapshot and snapshot.find(exemplar)
        return {line.split: 1} if line else {}

    answer = learners(ground, items)
    if row is None and not answer["releases"]:
        raise UnknownLineageError(f"there is no exemplar {exemplar}, and no release's snapshot has it")
    entries = label_entries(ground.memory)
    return ExemplarLineage(
        id=exemplar,
        exemplar=row,
        labels=tuple(entry for number, entry in entries.items() if number in numbers),
        **answer,
    )


def learners(ground: Ground, items_in: ItemsIn) -> _Onward:
    """Return the releases that were made of something, or go back to one that was trained on it.

    Raises StoreError, EvidenceError and StoreUnavailableError.
    """
    own: dict[str, Mapping[str, int]] = {}
    unsaid = []
    for digest, release in ground.releases.items():
        made = ground.made_of(release)
        if made is None:
            unsaid.append(digest)
        own[digest] = {} if made is None else items_in(release, made)
    releases = []
    for digest, release in ground.releases.items():
        taught = (parent.digest for parent in ground.parents(release) if own[parent.digest].get("train"))
        through = None if own[digest] else next(taught, None)
        if own[digest] or through is not None:
            counts, newest = ground.verdicts_of(digest)
            releases.append(
                Learner(release=release, items=own[digest], through=through, verdicts=counts, newest=newest)
            )
    return {"releases": tuple(releases), "unsaid": tuple(unsaid)}

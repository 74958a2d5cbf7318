"""From a label, a source or an exemplar on: the releases that it went into, and what those said."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TypedDict

from sqlalchemy import func, select

from deploy.lineage.ground import Ground
from deploy.lineage.labels import label_entries
from deploy.lineage.records import ExemplarLineage, LabelLineage, Learner, SourceLineage
from deploy.release_records import Release
from memory.labels import labels_of
from memory.records import Exemplar
from memory.rows import UnknownExemplarError, exemplars_of
from memory.schema import exemplars, labelled
from memory.sources import is_of
from updater.evaluation_parts import MadeOf

ItemsIn = Callable[[Release, MadeOf], Mapping[str, int]]
"""How many exemplars of something a release's snapshot has, by split."""


class UnknownLineageError(Exception):
    """Nothing is known of what was asked for. Fatal for the request."""


class _Onward(TypedDict):
    releases: tuple[Learner, ...]
    unsaid: tuple[str, ...]


def of_label(ground: Ground, number: int) -> LabelLineage:
    """Walk on from a label. Raises UnknownLineageError, and what `learners` raises."""
    entry = label_entries(ground.memory).get(number)
    if entry is None or entry.what is None:
        raise UnknownLineageError(f"there is no label {number}; `forgewatch labels` lists them")
    return LabelLineage(label=entry, **learners(ground, lambda _, made: made.labels.get(number, {})))


def of_source(ground: Ground, source: str) -> SourceLineage:
    """Walk on from a source. Raises UnknownLineageError, and what `learners` raises."""
    here = is_of(source)
    with ground.memory.read() as connection:
        shelves = select(exemplars.c.shelf, func.count()).where(here).group_by(exemplars.c.shelf)
        kept = {row[0]: row[1] for row in connection.execute(shelves)}
        numbers = labels_of(connection, here)
    found = learners(ground, lambda _, made: made.sources.get(source, {}))
    if not kept and not found["releases"]:
        raise UnknownLineageError(f"no exemplar and no release's snapshot is of the source {source!r}")
    entries = label_entries(ground.memory)
    return SourceLineage(
        source=source,
        exemplars=kept,
        labels=tuple(entry for number, entry in entries.items() if number in numbers),
        **found,
    )


def of_exemplar(ground: Ground, exemplar: str) -> ExemplarLineage:
    """Walk on from an exemplar. Raises UnknownLineageError, and what `learners` raises."""
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

    found = learners(ground, items)
    if row is None and not found["releases"]:
        raise UnknownLineageError(f"there is no exemplar {exemplar}, and no release's snapshot has it")
    entries = label_entries(ground.memory)
    return ExemplarLineage(
        id=exemplar,
        exemplar=row,
        labels=tuple(entry for number, entry in entries.items() if number in numbers),
        **found,
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
    found = []
    for digest, release in ground.releases.items():
        taught = (parent.digest for parent in ground.parents(release) if own[parent.digest].get("train"))
        through = None if own[digest] else next(taught, None)
        if own[digest] or through is not None:
            counts, newest = ground.verdicts_of(digest)
            found.append(
                Learner(release=release, items=own[digest], through=through, verdicts=counts, newest=newest)
            )
    return {"releases": tuple(found), "unsaid": tuple(unsaid)}

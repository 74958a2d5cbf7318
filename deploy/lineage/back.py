"""From a verdict or a release back: approvals, the training snapshot, nearest exemplars, labels, people."""

import time
from contextlib import suppress
from typing import Any

from kafka import TopicPartition
from kafka.errors import OffsetOutOfRangeError
from pydantic import ValidationError
from sqlalchemy import select

from deploy.lineage.onward import Ground, UnknownLineageError, label_entries
from deploy.lineage.records import LearntLabel, NeighbourLineage, ReleaseLineage, VerdictLineage
from detector.reading import parse_record
from detector.records import VERDICTS, Verdict, Withdrawal
from detector.release.artifact import version_of
from ingest.kafka.access import kafka_options
from ingest.kafka.topics import TopicError, open_reader
from ingest.settings import IngestSettings
from memory.schema import exemplars
from memory.verdict_index import VerdictPlace, find_superseded, find_verdict, release_taken_back


def read_verdict(
    ingest: IngestSettings, place: VerdictPlace, timeout_s: float
) -> Verdict | Withdrawal | None:
    """Return the record there; None where the topic has deleted it. Raises TopicError."""
    topic, more = ingest.topic(VERDICTS), {"auto_offset_reset": "none"}
    try:
        with open_reader(kafka_options(ingest), topic, timeout_s, **more) as (consumer, _):
            record = _record(consumer, TopicPartition(topic, place.partition), place.offset, timeout_s)
        verdict = None if record is None else parse_record(record.value, record.headers)
    except ValidationError:
        return None  # another topic of the same name, or a later version's
    wanted = (place.item_partition, place.item_offset)
    return verdict if verdict and (verdict.item.partition, verdict.item.offset) == wanted else None


def _record(consumer: Any, part: TopicPartition, offset: int, timeout_s: float) -> Any:
    consumer.assign([part])
    consumer.seek(part, offset)
    deadline = time.monotonic() + timeout_s
    try:
        while time.monotonic() < deadline:
            for record in consumer.poll(timeout_ms=100, max_records=1).get(part, []):
                return record if record.offset == offset else None
            if consumer.position(part) > offset:
                return None  # nothing to be read lies there: the topic was made anew
    except OffsetOutOfRangeError:
        return None
    raise TopicError(f"reading the topic of verdicts took longer than {timeout_s:g} s")


def of_release(ground: Ground, digest: str) -> ReleaseLineage:
    """Walk back from a release.

    Raises UnknownLineageError, StoreError, EvidenceError and StoreUnavailableError.
    """
    release = ground.releases.get(digest)
    if release is None:
        raise UnknownLineageError(f"no release {digest} was proposed")
    made, entries = ground.made_of(release), label_entries(ground.memory)
    labels = None
    if made is not None:
        labels = tuple(
            LearntLabel(label=number, entry=entries.get(number), items=items)
            for number, items in sorted(made.labels.items())
        )
    try:
        requested_by = ground.runs.get(release.candidate.update).requested_by
    except KeyError:
        requested_by = None
    counts, newest = ground.verdicts_of(digest)
    return ReleaseLineage(
        release=release,
        history=ground.history.get(digest, ()),
        requested_by=requested_by,
        parents=tuple(parent.digest for parent in ground.parents(release)),
        labels=labels,
        sources=made and made.sources,
        verdicts=counts,
        newest=newest,
    )


def of_verdict(ground: Ground, id_: str) -> VerdictLineage:
    """Walk back from a verdict, by its item's topic-partition-offset.

    It is read from its topic; one that called an item unknown also from the memory. Raises
    UnknownLineageError, StoreError, EvidenceError and StoreUnavailableError.
    """
    with ground.memory.read() as connection:
        place = find_verdict(connection, id_, ground.ingest.media_topic)
        remembered = connection.scalar(select(exemplars.c.verdict).where(exemplars.c.id == id_))
    problems, answer, verdict, taken_back = list[str](), None, None, None
    if place is not None:
        try:
            answer = read_verdict(ground.ingest, place, ground.kafka_timeout_s)
            if answer is None:
                problems.append("the topic has this verdict no more")
            taken_back = _taken_back(ground, place, answer)
        except TopicError as error:
            problems.append(f"the verdict itself cannot be read now: {error}")
    verdict = answer if isinstance(answer, Verdict) else None
    if answer is None and remembered is not None:
        with suppress(ValidationError):  # of another version
            verdict = Verdict.model_validate_json(remembered)
    if place is None and verdict is None:
        raise UnknownLineageError(
            f"no verdict {id_} is known: its id is topic-partition-offset of the item, as `forgewatch send`"
            " prints it, and it is known for as long as its topic keeps it"
        )
    said_by = version_of(verdict.release) if verdict else place and place.release
    digest = next((digest for digest in ground.releases if version_of(digest) == said_by), None)
    if digest is None:
        problems.append(f"the ledger does not know its release {said_by}")
    release = None if digest is None else of_release(ground, digest)
    if release is not None and release.labels is None:
        problems.append(f"release {said_by} was made before releases had a training snapshot")
    return VerdictLineage(
        id=id_,
        written=place and ground.ref(place),
        verdict=verdict,
        taken_back=taken_back,
        problems=tuple(problems),
        release=release,
        neighbours=_neighbours(ground, verdict, release),
    )


def _taken_back(ground: Ground, place: VerdictPlace, answer: Verdict | Withdrawal | None) -> str | None:
    """Say how a verdict was corrected or withdrawn; None of one that was not. Raises TopicError."""
    if answer is None or release_taken_back(answer) is None:
        return None
    with ground.memory.read() as connection:
        older = find_superseded(connection, place)
    before = read_verdict(ground.ingest, older[0], ground.kafka_timeout_s) if older else None
    by = version_of(release_taken_back(answer) or "")
    was = f"{by} called it {_label(before)}" if isinstance(before, Verdict) else f"{by}'s verdict is deleted"
    if isinstance(answer, Withdrawal):
        return f"withdrawn: {answer.reason}; {was}"
    return f"corrected: {was}, {version_of(answer.release)} calls it {_label(answer)}"


def _label(verdict: Verdict) -> str:
    return verdict.family if verdict.label == "fake" and verdict.family else verdict.label


def _neighbours(
    ground: Ground, verdict: Verdict | None, release: ReleaseLineage | None
) -> tuple[NeighbourLineage, ...]:
    if verdict is None or not verdict.neighbours:
        return ()
    has_snapshot = release is not None and release.labels is not None
    snapshot = ground.snapshot(verdict.release) if has_snapshot else None
    entries = {learnt.label: learnt.entry for learnt in (release and release.labels) or ()}
    neighbours = []
    for neighbour in verdict.neighbours:
        learnt = snapshot and snapshot.find(neighbour.exemplar)
        label = entries.get(learnt.label) if learnt else None
        neighbours.append(NeighbourLineage(**dict(neighbour), learnt=learnt, label=label))
    return tuple(neighbours)

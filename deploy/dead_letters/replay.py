"""Sends dead letters back to where they came from: each once, whatever is killed and whoever else does so.

A record and the mark that its letter was replayed are one transaction. All who replay share one
transactional id: who begins ends the transaction of another, and reads the marks after that.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from detector.records import UNKNOWNS
from ingest.kafka.access import kafka_options
from ingest.kafka.compacted import read_all
from ingest.kafka.sink import RecordTooLargeError, TransactionalSink
from ingest.records import InRecord, OutRecord
from ingest.replay import REPLAYS, ReplayError, build_replay, is_cut, origin, replay_count
from ingest.reread import MediaReader
from ingest.settings import IngestSettings

MOST_REPLAYS = 2
"""What failed, and failed again twice, is most likely to fail again: then it must be asked for."""
_AT_ONCE = 100


@dataclass(frozen=True)
class RecordPlace:
    """Where a record lies: a dead letter, or the original of one."""

    topic: str
    partition: int
    offset: int
    digest: str = ""

    @property
    def id(self) -> str:
        """topic-partition-offset."""
        return f"{self.topic}-{self.partition}-{self.offset}"


@dataclass(frozen=True)
class ReplayOutcome:
    """What became of a letter; why_not is None where it was replayed."""

    letter: str
    why_not: str | None = None


def replayed_before(ingest: IngestSettings, timeout_s: float) -> set[str]:
    """Ids of the letters that were replayed. Raises TopicError."""
    marks = read_all(kafka_options(ingest), ingest.topic(REPLAYS), timeout_s)
    return {mark.key.decode(errors="replace") for mark in marks if mark.key and mark.value is not None}


def replay(
    ingest: IngestSettings, places: Sequence[RecordPlace], timeout_s: float, *, force: bool = False
) -> Iterator[ReplayOutcome]:
    """Replay the letters at these places, in this order, and yield what became of each once it is committed.

    force: those that were replayed, or failed three times, too. Raises TopicError, SinkError,
    kafka.errors.KafkaError: what was yielded by then is done, and what is asked for again is not done twice.
    """
    with TransactionalSink(ingest, ingest.topic(REPLAYS)) as sink, MediaReader(ingest) as reader:
        done = replayed_before(ingest, timeout_s)
        left = list(dict.fromkeys(places))
        while some := left[:_AT_ONCE]:
            left = left[_AT_ONCE:]
            letters = dict(reader.records(some))
            outcomes, sent = [], dict[str, list[OutRecord]]()
            for place in some:
                try:
                    if place.id in done and not force:
                        raise ReplayError("it was replayed before")
                    sent[place.id] = _records_to_send(place, letters.get(place), reader, ingest, force=force)
                    outcomes.append(ReplayOutcome(place.id))
                except ReplayError as error:
                    outcomes.append(ReplayOutcome(place.id, str(error)))
            yield from _commit_replays(sink, outcomes, sent)
            done |= sent.keys()


def _records_to_send(
    place: RecordPlace, letter: InRecord | None, reader: MediaReader, ingest: IngestSettings, *, force: bool
) -> list[OutRecord]:
    if letter is None:
        raise ReplayError("no dead letter lies there any more")
    topic, partition, offset = origin(letter)
    if topic not in (ingest.media_topic, ingest.topic(UNKNOWNS)):
        raise ReplayError(f"it says that it came on {topic}, which is neither media nor unknowns")
    if replay_count(letter) >= MOST_REPLAYS and not force:
        raise ReplayError(f"it failed {replay_count(letter) + 1} times: --force tries it once more")
    record: InRecord | None = letter
    if is_cut(letter):
        original = RecordPlace(topic, partition, offset)
        record = dict(reader.records([original])).get(original)
    if record is None:
        raise ReplayError(f"it was too large to be kept whole, and {topic}-{partition}-{offset} is gone")
    mark = json.dumps({"at": datetime.now(UTC).isoformat()}).encode()
    return [build_replay(letter, record), OutRecord(ingest.topic(REPLAYS), place.id.encode(), mark)]


def _commit_replays(
    sink: TransactionalSink, outcomes: list[ReplayOutcome], sent: dict[str, list[OutRecord]]
) -> list[ReplayOutcome]:
    while sent:
        try:
            sink.commit([record for records in sent.values() for record in records], {}, None)
            break
        except RecordTooLargeError as error:
            in_the_way = next(name for name, records in sent.items() if error.record in records)
            del sent[in_the_way]
            said = ReplayOutcome(in_the_way, f"{error}: send its media by a claim check")
            outcomes = [said if each.letter == in_the_way else each for each in outcomes]
    return outcomes

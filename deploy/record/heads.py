"""The record's heads on a topic: a record whose tail was cut, or that was computed anew, differs from them.

A hash chain alone cannot show either: what is left is a chain, too. A published head says how long the record
was, and what it hashed to. Of every hundred acts compaction keeps the newest head for ever.

The topic is the authority. That a difference is known is a head as well, which settles heads before it there;
what the database says of it settles nothing. Each head bears the database's id: those of another are a
difference, too.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import structlog
from prometheus_client import Gauge
from pydantic import AwareDatetime, BaseModel, Field, ValidationError

from deploy.background import BackgroundWork
from deploy.record.chain import Act, Head
from deploy.record.record import Record, RecordError
from ingest.kafka.topics import TopicError, read_all, write
from memory.store import StoreUnavailableError

PUBLISHED = Gauge(
    "forgewatch_deploy_record_published",
    "1 while the record agrees with its published heads, and its newest is published",
)


HEADS = "record"
"""The topic's name behind the prefix."""

_ACTS_PER_KEY = 100


class PublishedHead(BaseModel, frozen=True):
    """What the topic holds."""

    database: str = Field(description="the id of deploy's database")
    size: int = Field(ge=1, description="how many acts the record had")
    hash: str = Field(pattern="^[0-9a-f]{64}$", description="of the newest of them")
    at: AwareDatetime
    settles: Mapping[str, int] = Field(
        {},
        description="of an accepted difference: by database, after how many acts heads that stand before this"
        " one on the topic may differ",
    )


class HeadsDifferError(Exception):
    """The record differs from its published heads, but for its first `agreed` acts.

    settles: what a head must settle by which an admin accepts that. name: of this very difference.
    """

    def __init__(self, agreed: int, wrong: str, settles: Mapping[str, int], name: str) -> None:
        super().__init__(
            f"{wrong}. Restore the database that has these rows. Where an older copy was restored on purpose,"
            f" or a head was forged, `forgewatch record accept {name} REASON` publishes that it is known"
        )
        self.agreed, self.wrong, self.settles, self.name = agreed, wrong, settles, name


class DifferenceChangedError(Exception):
    """The difference is now another than the one to accept; nothing was written."""


def publish(options: Mapping[str, Any], topic: str, head: PublishedHead, timeout_s: float) -> None:
    """Write a head and wait until all replicas have it; options are kafka-python's. Raises TopicError."""
    write(options, topic, _key(head).encode(), head.model_dump_json().encode(), timeout_s)


def _key(head: PublishedHead) -> str:
    # No later head takes the place of one that settles a difference.
    place = f"accepted-{head.size}" if head.settles else str(head.size // _ACTS_PER_KEY)
    return f"{head.database}-{place}"


def of_now(record: Record, head: Head, settles: Mapping[str, int] | None = None) -> PublishedHead:
    """The head to publish of a record that ends so."""
    about = {"database": record.id, "size": head.size, "hash": head.hash, "settles": settles or {}}
    return PublishedHead(at=datetime.now(UTC), **about)


def newest_of(record: Record, heads: Sequence[PublishedHead]) -> PublishedHead | None:
    """The head of this record that was published last; None where none was."""
    return next((head for head in reversed(heads) if head.database == record.id), None)


def compare(record: Record, heads: Sequence[PublishedHead], seen: int | None = None) -> None:
    """Compare the record with the heads of its topic, in their order, but for what an admin accepted.

    Raises HeadsDifferError, which names the first row that differs, and RecordError. The difference bears the
    same name for as long as the first `seen` acts (all that there are) and the heads are what they were.
    """
    unsettled, settled = list[PublishedHead](), dict[str, int]()
    for head in reversed(heads):
        if head.size <= settled.get(head.database, head.size):
            unsettled.append(head)
        for database, after in head.settles.items():
            settled[database] = min(after, settled.get(database, after))
    newest = {_key(head): head.hash for head in reversed(unsettled)}  # as compaction leaves them
    unsettled.sort(key=lambda head: head.size)
    end = record.head().size
    seen = end if seen is None else seen
    hashes = record.hashes({seen, *(head.size for head in unsettled)})
    foreign = {head.database: head for head in unsettled if head.database != record.id}
    right = [h.size for h in unsettled if h.database == record.id and hashes.get(h.size) == h.hash]
    wrong = [h for h in unsettled if h.database == record.id and hashes.get(h.size) != h.hash]
    if not foreign and not wrong:
        return
    state = json.dumps([record.id, hashes.get(seen), newest], sort_keys=True)
    name = f"{seen}-{hashlib.sha256(state.encode()).hexdigest()[:16]}"
    head = wrong[0] if wrong else next(iter(foreign.values()))
    at = f"published at {head.at:%Y-%m-%d %H:%M:%S} UTC"
    agreed = max((size for size in right if wrong and size < head.size), default=0)
    if not wrong:
        text = (
            f"the topic has heads of another database ({head.database[:12]}, {head.size} acts, {at}): either"
            f" this one's id ({record.id[:12]}) was changed, or another deploy server writes there"
        )
    elif head.size > end:
        text = f"row {end + 1} of the record is gone: a head of {head.size} acts was {at}"
    else:
        which = f"row {head.size}" if head.size == agreed + 1 else f"a row from {agreed + 1} to {head.size}"
        text = f"{which} of the record was changed, and the chain computed anew: its hash was another, {at}"
    settles = dict.fromkeys(foreign, 0) | ({record.id: agreed} if wrong else {})
    raise HeadsDifferError(agreed, text, settles, name)


def accept(
    record: Record, heads: Sequence[PublishedHead], actor: str, difference: str, reason: str
) -> PublishedHead:
    """Put on record that a difference from these heads, by its name, is known, and why.

    The head that is returned settles it once it is published, for all that stands before it on the topic and
    for nothing later. Raises DifferenceChangedError where not this differs, and RecordError.
    """
    try:
        compare(record, heads, int(difference.partition("-")[0]))
    except HeadsDifferError as error:
        if error.name == difference:
            details = {"reason": reason, "difference": error.wrong, "settles": dict(error.settles)}
            record.append(Act(actor, "accept difference", f"after act {error.agreed}", details))
            return of_now(record, record.head(), error.settles)
    raise DifferenceChangedError(f"{difference} is not the difference now: see `forgewatch record verify`")


INTERVAL_S = 1.0
"""Between two looks whether the record went on; after a failed one ten times as long."""

log = structlog.get_logger()


class HeadPublisher(BackgroundWork):
    """Keeps the topic at the record's head, in a thread of its own, while it is entered.

    Where the record differs from what was published of it, nothing more is published: the topic keeps what
    shows it, until the difference is accepted.
    """

    def __init__(
        self,
        record: Record,
        bring_in: Callable[[], int],
        options: Mapping[str, Any],
        topic: str,
        *,
        interval_s: float,
        timeout_s: float,
    ) -> None:
        """bring_in puts acts of other rooms on record first."""
        super().__init__("head-publisher")
        self._record, self._bring_in = record, bring_in
        self._options, self._topic = dict(options), topic
        self._interval_s, self._timeout_s = interval_s, timeout_s
        self.problem = "not published yet"
        self.newest: PublishedHead | None = None

    def read(self) -> list[PublishedHead]:
        """Every head that the topic holds, in its order; other records are passed by. Raises TopicError."""
        heads = list[PublishedHead]()
        for record in read_all(self._options, self._topic, self._timeout_s):
            with suppress(ValidationError):
                heads.append(PublishedHead.model_validate_json(record.value or b""))
        return heads

    def accept(self, actor: str, difference: str, reason: str) -> None:
        """Publish that a difference from the heads, by its name, is known, and why.

        Raises DifferenceChangedError, TopicError, RecordError, and what bring_in does.
        """
        self._bring_in()
        head = accept(self._record, self.read(), actor, difference, reason)
        publish(self._options, self._topic, head, self._timeout_s)

    def look(self) -> None:
        """Publish the head if the record went on.

        Raises HeadsDifferError, TopicError, RecordError, and what bring_in does.
        """
        self._bring_in()
        if self.problem is not None:
            heads = self.read()
            compare(self._record, heads)
            self.newest = newest_of(self._record, heads)
        head = self._record.head()
        if self.newest is not None and head == Head(self.newest.size, self.newest.hash):
            return
        if self.newest is not None:
            compare(self._record, [self.newest])
        if head.size:
            published = of_now(self._record, head)
            publish(self._options, self._topic, published, self._timeout_s)
            self.newest = published

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self.look()
                problem = None
            except (HeadsDifferError, TopicError, RecordError, StoreUnavailableError) as error:
                problem = str(error)
                if problem != self.problem:
                    log.error("the record's head is not published", problem=problem)
            self.problem = problem
            PUBLISHED.set(problem is None)
            self._stop.wait(self._interval_s if problem is None else 10 * self._interval_s)

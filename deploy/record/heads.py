"""The record's heads on a topic: a record whose tail was cut, or that was computed anew, differs from them.

A hash chain alone cannot show either: what is left is a chain, too. A published head says how long the record
was, and what it hashed to. Of every hundred acts compaction keeps the newest head for ever.

The topic is the authority. That a difference is known is a head as well, which settles heads before it there;
what the database says of it settles nothing. Each head bears the database's id: those of another are a
difference, too.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from deploy.record.acts import Act
from deploy.record.chain import Head
from deploy.record.record import Record
from ingest.kafka.compacted import read_all, write

HEADS = "record"
"""The topic's name behind the prefix."""

_ACTS_PER_KEY = 100


class PublishedHead(BaseModel):
    """What the topic holds."""

    model_config = ConfigDict(frozen=True)

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
    """The record is not what was published of it, but for its first `agreed` acts.

    settles: what a head must settle by which an admin accepts that.
    """

    def __init__(self, agreed: int, wrong: str, settles: Mapping[str, int]) -> None:
        super().__init__(
            f"{wrong}. Restore the database that has these rows. Where an older copy was restored on purpose,"
            " or a head was forged, `forgewatch record accept REASON` publishes that it is known"
        )
        self.agreed, self.wrong, self.settles = agreed, wrong, settles


def read_heads(options: Mapping[str, Any], topic: str, timeout_s: float) -> list[PublishedHead]:
    """Every head that the topic still holds, in its order; what is none is passed by.

    options are kafka-python's connection options. Raises TopicError.
    """
    heads = []
    for record in read_all(options, topic, timeout_s):
        try:
            heads.append(PublishedHead.model_validate_json(record.value or b""))
        except ValidationError:
            continue
    return heads


def publish(options: Mapping[str, Any], topic: str, head: PublishedHead, timeout_s: float) -> None:
    """Write a head and wait until all replicas have it; raises TopicError."""
    # No later head takes the place of one that settles a difference.
    place = f"accepted-{head.size}" if head.settles else str(head.size // _ACTS_PER_KEY)
    key = f"{head.database}-{place}".encode()
    write(options, topic, key, head.model_dump_json().encode(), timeout_s)


def of_now(record: Record, head: Head, settles: Mapping[str, int] | None = None) -> PublishedHead:
    """What is to be published of a record that ends so."""
    about = {"database": record.id, "size": head.size, "hash": head.hash, "settles": settles or {}}
    return PublishedHead(at=datetime.now(UTC), **about)


def newest_of(record: Record, heads: Sequence[PublishedHead]) -> PublishedHead | None:
    """The head of this record that was published last; None where none was."""
    return next((head for head in reversed(heads) if head.database == record.id), None)


def compare(record: Record, heads: Sequence[PublishedHead]) -> None:
    """Compare the record with the heads of its topic, in their order, but for what an admin accepted.

    Raises HeadsDifferError, which names the first row that differs, and RecordError.
    """
    unsettled, settled = list[PublishedHead](), dict[str, int]()
    for head in reversed(heads):
        if head.size <= settled.get(head.database, head.size):
            unsettled.append(head)
        for database, after in head.settles.items():
            settled[database] = min(after, settled.get(database, after))
    unsettled.sort(key=lambda head: head.size)
    end, hashes = record.head().size, record.hashes({head.size for head in unsettled})
    others = {head.database: head for head in unsettled if head.database != record.id}
    right = [h.size for h in unsettled if h.database == record.id and hashes.get(h.size) == h.hash]
    wrong = [h for h in unsettled if h.database == record.id and hashes.get(h.size) != h.hash]
    if not others and not wrong:
        return
    settles = dict.fromkeys(others, 0)
    head = wrong[0] if wrong else next(iter(others.values()))
    at = f"published at {head.at:%Y-%m-%d %H:%M:%S} UTC"
    if not wrong:
        raise HeadsDifferError(
            0,
            f"the topic has heads of another database ({head.database[:12]}, {head.size} acts, {at}): either"
            f" this one's id ({record.id[:12]}) was changed, or another deploy server writes there",
            settles,
        )
    agreed = max((size for size in right if size < head.size), default=0)
    if head.size > end:
        said = f"row {end + 1} of the record is gone: a head of {head.size} acts was {at}"
    else:
        which = f"row {head.size}" if head.size == agreed + 1 else f"a row from {agreed + 1} to {head.size}"
        said = f"{which} of the record was changed, and the chain computed anew: its hash was another, {at}"
    raise HeadsDifferError(agreed, said, settles | {record.id: agreed})


def accept(record: Record, heads: Sequence[PublishedHead], actor: str, reason: str) -> PublishedHead | None:
    """Put on record that a difference from these heads is known, and why; None where there is none.

    The head that is returned settles it once it is published, for all that stands before it on the topic and
    for nothing later. Raises RecordError.
    """
    try:
        compare(record, heads)
    except HeadsDifferError as error:
        details = {"reason": reason, "difference": error.wrong, "settles": dict(error.settles)}
        record.append(Act(actor, "accept difference", f"after act {error.agreed}", details))
        return of_now(record, record.head(), error.settles)
    return None

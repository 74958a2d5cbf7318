"""The record's heads on a topic: a record whose tail was cut, or that was computed anew, differs from them.

A hash chain alone cannot show either: what is left is a chain, too. A published head says how long the record
was, and what it hashed to. Of every hundred acts compaction keeps the newest head for ever.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, ValidationError

from deploy.record.acts import Act
from deploy.record.chain import Head
from deploy.record.record import Record
from ingest.kafka.compacted import read_all, write

HEADS = "record"
"""The topic's name behind the prefix."""

ACCEPT = "accept difference"
"""The act by which an admin says that a difference is known: a backup was restored, a head was forged."""

_ACTS_PER_KEY = 100
_ACCEPTED_AT_MOST = 1000


class PublishedHead(BaseModel):
    """What the topic holds."""

    model_config = ConfigDict(frozen=True)

    database: str = Field(description="the id of deploy's database")
    size: int = Field(ge=1, description="how many acts the record had")
    hash: str = Field(pattern="^[0-9a-f]{64}$", description="of the newest of them")
    at: AwareDatetime


class HeadsDifferError(Exception):
    """The record is not what was published of it, but for its first `agreed` acts; `heads` differ."""

    def __init__(self, agreed: int, wrong: str, heads: Sequence[PublishedHead]) -> None:
        super().__init__(
            f"{wrong}. Restore the database that has these rows. Where an older copy was restored on purpose,"
            " or a head was forged, `forgewatch record accept REASON` puts on record that it is known"
        )
        self.agreed, self.wrong, self.heads = agreed, wrong, heads


def read_heads(
    options: Mapping[str, Any], topic: str, database: str, timeout_s: float
) -> list[PublishedHead]:
    """Every head of this database that the topic still holds; what is none is passed by.

    options are kafka-python's connection options. Raises TopicError.
    """
    heads = []
    for record in read_all(options, topic, timeout_s):
        try:
            head = PublishedHead.model_validate_json(record.value or b"")
        except ValidationError:
            continue
        if head.database == database:
            heads.append(head)
    return heads


def publish(options: Mapping[str, Any], topic: str, head: PublishedHead, timeout_s: float) -> None:
    """Write a head and wait until all replicas have it; raises TopicError."""
    key = f"{head.database}-{head.size // _ACTS_PER_KEY}".encode()
    write(options, topic, key, head.model_dump_json().encode(), timeout_s)


def of_now(record: Record, head: Head) -> PublishedHead:
    """What is to be published of a record that ends so."""
    return PublishedHead(database=record.id, size=head.size, hash=head.hash, at=datetime.now(UTC))


def compare(record: Record, heads: Iterable[PublishedHead]) -> None:
    """Compare the record with what was published of it, but for what an admin accepted.

    Raises HeadsDifferError, which names the first row that differs, and RecordError.
    """
    accepted = {
        hash for entry in record.entries(_ACCEPTED_AT_MOST, action=ACCEPT) for hash in entry.details["heads"]
    }
    heads = sorted(heads, key=lambda head: head.size)
    end, hashes = record.head().size, record.hashes({head.size for head in heads})
    differing = [head for head in heads if hashes.get(head.size) != head.hash and head.hash not in accepted]
    if not differing:
        return
    head = differing[0]
    agreed = max((h.size for h in heads if h.size < head.size and hashes.get(h.size) == h.hash), default=0)
    at = f"published at {head.at:%Y-%m-%d %H:%M:%S} UTC"
    if head.size > end:
        wrong = f"row {end + 1} of the record is gone: a head of {head.size} acts was {at}"
    else:
        which = f"row {head.size}" if head.size == agreed + 1 else f"a row from {agreed + 1} to {head.size}"
        wrong = f"{which} of the record was changed, and the chain computed anew: its hash was another, {at}"
    raise HeadsDifferError(agreed, wrong, differing)


def accept(record: Record, heads: Iterable[PublishedHead], actor: str, reason: str) -> bool:
    """Put on record that a difference from these heads is known, and why; False where there is none.

    Every head that differs now is settled by it, and no later one. Raises RecordError.
    """
    try:
        compare(record, heads)
    except HeadsDifferError as error:
        settled = sorted({head.hash for head in error.heads})
        details = {"reason": reason, "difference": error.wrong, "heads": settled}
        record.append(Act(actor, ACCEPT, f"after act {error.agreed}", details))
        return True
    return False

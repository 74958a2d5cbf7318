"""Where to read on once a topic's log does not have any more what was to be read next, and what that cost.

Retention deletes records whether they were read or not. A log ends before what was read of it where its
broker lost the end of it (an unclean election), or had its disks restored to an earlier time.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import structlog
from kafka import TopicPartition
from kafka.errors import LogTruncationError, OffsetOutOfRangeError
from prometheus_client import Counter

from ingest import metrics

log = structlog.get_logger()


class Step(NamedTuple):
    """From the offset that was to be read next to the one that is."""

    before: int
    after: int


def read_on(
    consumer: Any,
    error: OffsetOutOfRangeError | LogTruncationError,
    kept: Mapping[TopicPartition, int | None],
    lost: Counter,
) -> dict[TopicPartition, Step]:
    """Seek to where each partition of the error is to be read on; counted and logged.

    The consumer must have no auto_offset_reset, or it would go there without a word. kept is where the reader
    has on record that it is, None: nowhere. Raises kafka.errors.KafkaError, and is then to be called again.

    Over what was deleted unread the partition goes on at its beginning, and `lost` counts the offsets in
    between. Of a log that was cut nothing can be lost but what the broker lost. It is read from where it was
    cut, if the broker tells; else from what is on record, if that is earlier; else from the beginning: what
    was written since must not be passed over, so what is left of the old records comes again.
    """
    steps = {}
    begins = consumer.beginning_offsets(list(_positions(consumer, error)))
    for partition, before in _positions(consumer, error).items():
        begin, on_record = begins[partition], kept.get(partition)
        where = {"topic": partition.topic, "partition": partition.partition, "from_offset": before}
        if before < begin:
            after = begin
            lost.inc(begin - before)
            log.error(
                "records were deleted from the topic before they were read",
                **where,
                to_offset=begin,
                records=begin - before,
                advice="raise retention.ms or retention.bytes of the topic; a reader restored from a backup "
                "cannot read what the topic keeps no more",
            )
        else:
            cut = error.divergent_offsets[partition] if isinstance(error, LogTruncationError) else None
            known = cut.offset if cut is not None else on_record
            after = max(begin, known) if known is not None and known < before else begin
            metrics.TRUNCATIONS.inc()
            log.error(
                "the topic ends before what was read of it",
                **where,
                to_offset=after,
                advice="the broker lost the end of it, or was restored to an earlier time; what is read "
                "again is answered again",
            )
        consumer.seek(partition, after)
        steps[partition] = Step(before, after)
    return steps


def _positions(consumer: Any, error: OffsetOutOfRangeError | LogTruncationError) -> dict[TopicPartition, int]:
    """The offsets that were to be read next, of those partitions that are still this reader's."""
    assigned = consumer._subscription.assignment
    if isinstance(error, OffsetOutOfRangeError):
        return {at: offset for at, offset in error.args[0].items() if at in assigned}
    return {
        at: assigned[at].position.offset
        for at in error.divergent_offsets
        if at in assigned and assigned[at].position is not None
    }

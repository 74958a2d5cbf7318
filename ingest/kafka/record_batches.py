"""Keeps kafka-python 3.0 reading where it would hang for ever or give up a partition for one bad batch.

All of Kafka's codecs are unpacked here, none to more than a bound: a broker takes a batch by its packed size.
A batch whose checksum holds and that does not unpack, or whose records do not add up, costs what it holds:
each of its records is given with an Unreadable for its value, so that each item gets its dead letter.

A header name that is no UTF-8: brokers accept such names and librdkafka sends them, and the client decodes
strictly. The bytes that are no ASCII in such a name are replaced by question marks.

A batch that is corrupt (its checksum fails): the client raises once, and its next poll never returns, since
fetched_records spins on the batch's dead iterator. Here that batch is left out, counted and logged, and its
partition goes on with the one after it. Where the broker itself cannot read its log any further, the
partition stands still, which is logged, and others go on.

A position that stands before the end of a transaction, where the last record before it was asked for alone:
once retention has emptied the log, that end would be taken for a record that nobody read. One record more
is looked at, so that a position steps over what holds no record as soon as it can.
"""

import contextlib
import struct
import time
from collections.abc import Iterator
from typing import Any

import cramjam
import numpy as np
import structlog
from kafka import TopicPartition
from kafka.consumer import fetcher
from kafka.errors import CorruptRecordError, UnsupportedCodecError
from kafka.record import memory_records
from kafka.record.default_records import DefaultRecord, DefaultRecordBatch
from kafka.record.util import decode_varint

from ingest import metrics
from ingest.records import Unreadable

log = structlog.get_logger()

_NEWEST_FORMAT = 2
_BASE_OFFSET = struct.Struct(">q")
_BLOCK = struct.Struct(">I")
# How Java's clients begin what snappy packs in blocks, and where the first one lies.
_BLOCKS, _FIRST_BLOCK = b"\x82SNAPPY\0", 16
_UNPACK = {
    1: cramjam.gzip.decompress_into,
    2: cramjam.snappy.decompress_raw_into,
    3: cramjam.lz4.decompress_into,
    4: cramjam.zstd.decompress_into,
}
# A batch unpacks to so many bytes, or to so many times its packed ones where that is more.
_MOST_UNPACKED_BYTES, _MOST_UNPACKED_TIMES = 64 << 20, 4
# Of a batch that cannot be read so many records are given at most: its own count may be wrong, too.
_MOST_UNREAD = 10_000
_STANDSTILL_S = 0.1
_parse = fetcher.Fetcher._parse_fetched_data
_noted: dict[TopicPartition, int] = {}


def tolerate_bad_batches(most_record_bytes: int) -> None:
    """Make every consumer of this process read on over what is described above; harmless when repeated.

    A record that unpacks to more than most_record_bytes is not held.
    """
    _Batch.most_record_bytes = most_record_bytes
    memory_records.DefaultRecordBatch = _Batch
    fetcher.MemoryRecords = _SoundRecords
    fetcher.Fetcher.PartitionRecords = _PartitionRecords
    fetcher.Fetcher._parse_fetched_data = _parse_or_stand_still


def _unpack_records(codec: int, data: bytearray) -> bytearray:
    """Unpack a batch's records. Raises cramjam.DecompressionError, struct.error, UnsupportedCodecError."""
    if codec not in _UNPACK:
        raise UnsupportedCodecError(f"Kafka has no codec {codec}")
    blocks = [data]
    if data.startswith(_BLOCKS):
        blocks, at = [], _FIRST_BLOCK
        while at < len(data):
            (size,) = _BLOCK.unpack_from(data, at)
            at += _BLOCK.size + size
            blocks.append(data[at - size : at])
    # The kernel gives memory for what is written there alone.
    most = max(_MOST_UNPACKED_BYTES, _MOST_UNPACKED_TIMES * len(data))
    room, end = np.empty(most, np.uint8).data, 0
    for block in blocks:
        end += _UNPACK[codec](block, room[end:])
    return bytearray(room[:end])


def _unreadable(partition: TopicPartition, offsets: str, error: Exception) -> Unreadable:
    where = {"topic": partition.topic, "partition": partition.partition, "offsets": offsets}
    log.error("batch cannot be read, each of its records is answered so", error=str(error), **where)
    return Unreadable(f"the batch of the offsets {offsets} cannot be read, or unpacks to too much: {error}")


class _Batch(DefaultRecordBatch):  # type: ignore[misc]
    """A batch whose checksum holds. From the first record on that cannot be read it gives Unreadables."""

    _buffer: Any
    _pos: int
    partition: TopicPartition
    most_record_bytes: int

    def __iter__(self) -> Iterator[Any]:
        try:
            if self.compression_type:
                self._buffer, self._pos = _unpack_records(self.compression_type, self._buffer[self._pos :]), 0
            for record in iter(super().__next__, None):
                if self.compression_type and (size := record.size_in_bytes) > self.most_record_bytes:
                    problem = f"it unpacks to {size} bytes; the limit is {self.most_record_bytes}"
                    yield self._placeholder_record(record.offset, Unreadable(problem))
                else:
                    yield record
        except MemoryError:
            raise  # a fault of this host, for which no record may be left out
        except Exception as error:
            value = _unreadable(self.partition, f"{self.base_offset} to {self.last_offset}", error)
            left = min(max(0, self.records_count - self._next_record_index), _MOST_UNREAD)
            for offset in range(self.base_offset + self._next_record_index, self.next_offset)[:left]:
                yield self._placeholder_record(offset, value)

    def _placeholder_record(self, offset: int, value: Unreadable) -> DefaultRecord:
        return DefaultRecord(0, offset, self.max_timestamp, self.timestamp_type, None, value, [])

    def _read_msg(self, *arguments: Any) -> Any:
        start = self._pos
        try:
            return super()._read_msg(*arguments)
        except UnicodeDecodeError:
            _mend(self._buffer, start)
            self._pos = start
            return super()._read_msg(*arguments)


class _SoundRecords(memory_records.MemoryRecords):  # type: ignore[misc]
    """The batches of one fetched buffer, without those whose checksum fails.

    resume_at, where it is not None, is the offset to fetch next once these batches are read. After a
    corrupt batch that is the next one's offset: the broker then names the aborted transactions anew,
    so that a corrupt end of one does not hide what its producer wrote later.
    """

    partition: TopicPartition
    fetch_offset: int
    resume_at: int | None = None
    _pos: int
    _next_slice: memoryview | None

    def has_next(self) -> bool:
        """Also where the first batch seems cut off: a broker sends it whole, so its length is damaged."""
        return super().has_next() or self._first_is_cut_off()

    def next_batch(self, *arguments: Any) -> Any:
        data, error = self._next_slice, None
        if self._first_is_cut_off():
            data, error = memoryview(self._buffer), CorruptRecordError("the batch's length is damaged")
        while data is not None:
            if error is None:
                batch, error = self._check_batch()
                if error is None:
                    return batch
            base = _BASE_OFFSET.unpack_from(data)[0]
            after = self._after(base, data)
            _note(self.partition, base, error)
            data, error = self._next_slice, None
            if after > self.fetch_offset or data is None:
                self.resume_at = max(after, self.fetch_offset + 1)
                return None
            # Asked for an offset beyond it, the broker sent the corrupt batch again, with what follows.
        return None

    def _first_is_cut_off(self) -> bool:
        return self._pos == 0 and self._next_slice is None and len(self._buffer) >= _BASE_OFFSET.size

    def _cache_next(self, *arguments: Any) -> None:
        start = self._pos
        super()._cache_next(*arguments)
        if self._next_slice is not None and len(self._next_slice) < self.MIN_SLICE:
            self._pos, self._next_slice, self._remaining_bytes = start, None, len(self._buffer) - start

    def _check_batch(self) -> tuple[Any, Exception | None]:
        try:
            batch = super().next_batch()
            packed_of_old = batch.magic < _NEWEST_FORMAT and batch.compression_type > 1
            if not batch.validate_crc() or batch.magic > _NEWEST_FORMAT or packed_of_old:
                return None, CorruptRecordError("the checksum fails, or the format is none that is read")
        except struct.error as error:
            return None, error
        if isinstance(batch, _Batch):
            batch.partition = self.partition
        return batch, None

    def _after(self, base: int, data: memoryview) -> int:
        """The offset after a corrupt batch, of which no single field is to be trusted."""
        with contextlib.suppress(struct.error):
            following = DefaultRecordBatch(self._next_slice or b"")
            if following.validate_crc() and following.base_offset > base:
                return int(following.base_offset)
        with contextlib.suppress(struct.error):
            batch = DefaultRecordBatch(data)
            if batch.records_count == batch.last_offset_delta + 1 > 0:
                return int(batch.next_offset)
        return base + 1


class _PartitionRecords(fetcher.Fetcher.PartitionRecords):  # type: ignore[misc]
    """One fetch's records of a partition; an error ends it, so that the client does not spin on it."""

    next_fetch_offset: int
    _seen: tuple[Any, ...] = ()

    def take(self, n: int | None = None) -> list[Any]:
        try:
            more = super().take(None if n is None else n - len(self._seen))
        except Exception:
            self.drain()
            raise
        taken, self._seen = [*self._seen, *more], ()
        if self and len(taken) == n:
            self._look_further()
        return taken

    def _look_further(self) -> None:
        try:
            self._seen = tuple(super().take(1))
        except Exception as error:
            self._next_inline_exception = error  # which the next take raises
        if self._seen:
            self.next_fetch_offset = self._seen[0].offset

    def _unpack_records(self, tp: TopicPartition, records: _SoundRecords, *serializers: Any) -> Iterator[Any]:
        records.partition, records.fetch_offset = tp, self.fetch_offset
        yield from super()._unpack_records(tp, records, *serializers)
        self.next_fetch_offset = max(self.next_fetch_offset, records.resume_at or self.fetch_offset)


def _parse_or_stand_still(self: Any, completed: Any) -> Any:
    try:
        return _parse(self, completed)
    except CorruptRecordError as error:
        _note(completed.topic_partition, completed.fetched_offset, error, "the broker cannot read on")
        time.sleep(_STANDSTILL_S)  # it answers at once, and is asked again
        return None


def _note(at: TopicPartition, offset: int, error: Exception, event: str = "corrupt batch left out") -> None:
    # The same batch is met again where the way over it takes several steps, or a consumer goes back.
    if _noted.get(at) == offset:
        return
    _noted[at] = offset
    metrics.CORRUPT_BATCHES.inc()
    log.error(event, topic=at.topic, partition=at.partition, offset=offset, error=str(error))


def _mend(buffer: bytearray, position: int) -> None:
    """Replace the bytes of undecodable header names of the record (format 2) that starts at position."""
    for _ in ("length", "attributes", "timestamp", "offset"):
        _, position = decode_varint(buffer, position)
    for _ in ("key", "value"):
        length, position = decode_varint(buffer, position)
        position += max(length, 0)
    count, position = decode_varint(buffer, position)
    for _ in range(count):
        length, position = decode_varint(buffer, position)
        name = bytes(buffer[position : position + length])
        try:
            name.decode()
        except UnicodeDecodeError:
            buffer[position : position + length] = bytes(byte if byte < 128 else ord("?") for byte in name)
        position += length
        length, position = decode_varint(buffer, position)
        position += max(length, 0)

"""A damaged batch is left out, and nothing else: against a log that answers as a broker does."""

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from kafka import TopicPartition
from kafka.consumer import fetcher
from kafka.errors import UnsupportedCodecError
from kafka.record.default_records import DefaultRecordBatchBuilder

from ingest import metrics
from ingest.kafka.record_batches import tolerate_bad_batches

PARTITION = TopicPartition("media", 0)
HEAD = struct.Struct(">qiibIhi")
CHECKSUM, DELTA, HEADER = 17, 23, 61  # where they begin, and the header ends, in a batch
WHOLE = 1 << 20


@pytest.fixture(scope="module", autouse=True)
def _tolerant() -> None:
    tolerate_bad_batches()


@dataclass
class Log:
    """Batches as a segment file has them; `sizes` are the records of each."""

    sizes: list[int]
    batches: list[bytearray] = field(default_factory=list)

    def __post_init__(self) -> None:
        base = 0
        for size in self.sizes:
            self.batches.append(batch(base, [b"%d" % (base + number) for number in range(size)]))
            base += size

    def fetch(self, offset: int, most_bytes: int) -> bytes:
        """From the first batch on that, by its own header, ends at the offset or after it; one at least."""
        if offset >= sum(self.sizes):
            return b""
        for number, data in enumerate(self.batches):
            base, _, _, _, _, _, delta = HEAD.unpack_from(data)
            if base + delta >= offset:
                return b"".join(self.batches[number:])[: max(most_bytes, len(data))]
        return b""

    def values(self, without: int | None) -> list[bytes]:
        starts = [sum(self.sizes[:number]) for number in range(len(self.sizes))]
        return [
            b"%d" % offset
            for number, (start, size) in enumerate(zip(starts, self.sizes, strict=True))
            if number != without
            for offset in range(start, start + size)
        ]


def batch(base: int, values: list[bytes], compression: int = 0) -> bytearray:
    builder = DefaultRecordBatchBuilder(2, compression, False, -1, -1, -1, 1 << 20)
    for number, value in enumerate(values):
        builder.append(number, 0, None, value, [])
    built = bytearray(builder.build())
    struct.pack_into(">q", built, 0, base)
    return built


def sealed(data: bytearray) -> bytearray:
    """The batch with a checksum that holds, whatever is in it."""
    from kafka.record.util import calc_crc32c

    struct.pack_into(">I", data, CHECKSUM, calc_crc32c(memoryview(data)[CHECKSUM + 4 :]))
    return data


def read(fetch: Callable[[int], bytes], most: int, offset: int = 0) -> Iterator[bytes]:
    """Read as the client's poll does, at most so many records at once, until a fetch brings nothing."""
    while data := fetch(offset):
        records = fetcher.MemoryRecords(data)
        assert records.has_next()
        part = fetcher.Fetcher.PartitionRecords(offset, PARTITION, records)
        before = offset
        while part:
            yield from (record.value for record in part.take(most))
            offset = part.next_fetch_offset
        assert offset > before, "the partition stands still"


logs = st.lists(st.integers(1, 5), min_size=1, max_size=6)


@pytest.mark.slow
@settings(max_examples=300)
@given(logs, st.data(), st.integers(1, 7), st.sampled_from([200, WHOLE]))
def test_a_batch_that_is_damaged_anywhere_is_left_out_and_every_other_record_read_once(
    sizes, data, most, most_bytes
):
    log = Log(sizes)
    number = data.draw(st.integers(0, len(sizes) - 1), "batch")
    # Of the offset and the leader's epoch before it there is no checksum; of the length see below.
    at = data.draw(st.integers(16, len(log.batches[number]) - 1), "byte")
    # By that field the broker itself finds a batch: it may then send no other within few bytes.
    assume(most_bytes == WHOLE or not DELTA <= at < DELTA + 4)
    log.batches[number][at] ^= data.draw(st.integers(1, 255), "mask")
    assert list(read(lambda offset: log.fetch(offset, most_bytes), most)) == log.values(without=number)


@pytest.mark.parametrize("start", [1, 2])
def test_reading_on_in_the_middle_of_a_damaged_batch_steps_over_its_rest(start):
    log = Log([3, 2])
    log.batches[0][-1] ^= 1
    assert list(read(lambda offset: log.fetch(offset, WHOLE), 9, start)) == [b"3", b"4"]


def test_two_damaged_batches_in_a_row_are_left_out_and_counted_each():
    log = Log([2, 2, 2, 1])
    for number in (1, 2):
        log.batches[number][CHECKSUM] ^= 255
    before = metrics.CORRUPT_BATCHES._value.get()
    assert list(read(lambda offset: log.fetch(offset, WHOLE), 9)) == [b"0", b"1", b"6"]
    assert metrics.CORRUPT_BATCHES._value.get() == before + 2


@pytest.mark.parametrize("length", [-(1 << 31), -12, 0, 20, 1 << 30])
@pytest.mark.parametrize("number", [0, 1])
def test_a_damaged_length_ends_what_was_fetched_and_nothing_hangs(length, number):
    log = Log([2, 2, 2])
    struct.pack_into(">i", log.batches[number], 8, length)
    # The broker cannot find the batch after it by that length either; here it can.
    assert list(read(lambda offset: log.fetch(offset, WHOLE), 9)) == log.values(without=number)


@pytest.mark.parametrize("compression", [0, 1])
def test_a_batch_that_does_not_unpack_ends_where_it_fails(compression):
    log = Log([2, 2, 1])
    unsound = batch(2, [b"x" * 40, b"y" * 40], compression)
    unsound[HEADER + 1 : HEADER + 8] = b"\xff" * 7
    log.batches[1] = sealed(unsound)
    assert list(read(lambda offset: log.fetch(offset, WHOLE), 9)) == [b"0", b"1", b"4"]


def test_a_codec_that_this_host_lacks_is_no_reason_to_leave_a_batch_out(monkeypatch):
    log = Log([1, 1])
    log.batches[0] = batch(0, [b"x" * 40], compression=1)
    monkeypatch.setattr("kafka.codec.has_gzip", lambda: False)
    for _ in range(2):  # and it does not hang either
        with pytest.raises(UnsupportedCodecError):
            list(read(lambda offset: log.fetch(offset, WHOLE), 9))

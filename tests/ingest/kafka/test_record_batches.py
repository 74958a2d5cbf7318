"""A damaged batch is left out, and nothing else: against a log that answers as a broker does."""

import struct
from dataclasses import dataclass, field

import cramjam
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from kafka import TopicPartition
from kafka.consumer import fetcher
from kafka.record.default_records import DefaultRecordBatchBuilder
from kafka.record.legacy_records import LegacyRecordBatchBuilder

from ingest import metrics
from ingest.kafka import record_batches
from ingest.kafka.record_batches import tolerate_bad_batches
from ingest.records import Unreadable

PARTITION = TopicPartition("media", 0)
HEAD = struct.Struct(">qiibIhi")
CHECKSUM, DELTA, HEADER = 17, 23, 61  # where they begin, and the header ends, in a batch
WHOLE = LARGEST = 1 << 20


@pytest.fixture(scope="module", autouse=True)
def _tolerant():
    tolerate_bad_batches(LARGEST)


@dataclass
class Log:
    """Batches as a segment file has them; `sizes` are the records of each."""

    sizes: list[int]
    batches: list[bytearray] = field(default_factory=list)

    def __post_init__(self):
        base = 0
        for size in self.sizes:
            self.batches.append(batch(base, [b"%d" % (base + number) for number in range(size)]))
            base += size

    def fetch(self, offset, most_bytes):
        """From the first batch on that, by its own header, ends at the offset or after it; one at least."""
        if offset >= sum(self.sizes):
            return b""
        for number, data in enumerate(self.batches):
            base, _, _, _, _, _, delta = HEAD.unpack_from(data)
            if base + delta >= offset:
                return b"".join(self.batches[number:])[: max(most_bytes, len(data))]
        return b""

    def values(self, without):
        starts = [sum(self.sizes[:number]) for number in range(len(self.sizes))]
        return [
            b"%d" % offset
            for number, (start, size) in enumerate(zip(starts, self.sizes, strict=True))
            if number != without
            for offset in range(start, start + size)
        ]


def batch(base, values):
    builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, -1, 1 << 30)
    for number, value in enumerate(values):
        builder.append(number, 0, None, value, [])
    built = bytearray(builder.build())
    struct.pack_into(">q", built, 0, base)
    return built


def sealed(data):
    """The batch with a checksum that holds, whatever is in it."""
    from kafka.record.util import calc_crc32c

    struct.pack_into(">I", data, CHECKSUM, calc_crc32c(memoryview(data)[CHECKSUM + 4 :]))
    return data


def read(fetch, most, offset=0):
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
def test_a_batch_damaged_anywhere_is_left_out_and_every_other_record_read(sizes, data, most, most_bytes):
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


CODECS = {
    "gzip": (1, cramjam.gzip.compress),
    "snappy": (2, cramjam.snappy.compress_raw),
    "snappy of Java's clients": (2, lambda data: in_blocks(data[:50], data[50:])),
    "lz4": (3, cramjam.lz4.compress),
    "zstd": (4, cramjam.zstd.compress),
}


def in_blocks(*parts):
    packed = [bytes(cramjam.snappy.compress_raw(part)) for part in parts]
    return b"\x82SNAPPY\0" + bytes(8) + b"".join(struct.pack(">I", len(part)) + part for part in packed)


def packed(base, values, codec, pack):
    data = batch(base, values)
    data[HEADER:] = bytes(pack(bytes(data[HEADER:])))
    struct.pack_into(">i", data, 8, len(data) - 12)
    data[CHECKSUM + 5] |= codec
    return sealed(data)


@pytest.mark.parametrize("codec", CODECS)
def test_a_batch_of_every_codec_of_kafka_is_read(codec):
    log, values = Log([1, 2, 1]), [b"x" * 900, b"y" * 90]
    log.batches[1] = packed(1, values, *CODECS[codec])
    assert list(read(lambda offset: log.fetch(offset, WHOLE), 9)) == [b"0", *values, b"3"]


@pytest.mark.parametrize("number", range(1, 8))
@pytest.mark.parametrize(
    "rubbish", [b"", b"rubbish" * 9, b"\x82SNAPPY\0" + bytes(8) + b"\xff" * 9, b"\xff" * 99]
)
def test_each_record_of_a_batch_that_does_not_unpack_is_given_as_unreadable(number, rubbish):
    log = Log([2, 2, 1])
    log.batches[1] = packed(2, [b"x", b"y"], number, lambda _: rubbish)
    values = list(read(lambda offset: log.fetch(offset, WHOLE), 3))
    assert values == [b"0", b"1", b"", b"", b"4"]
    assert all("the offsets 2 to 3 cannot be read, or unpacks" in value.why for value in values[2:4])


def test_the_records_before_an_unsound_one_are_read():
    log, unsound = Log([2, 3, 1]), batch(2, [b"x", b"y" * 40, b"z"])
    unsound[HEADER + 8 : HEADER + 16] = b"\xff" * 8  # behind the first
    log.batches[1] = sealed(unsound)
    assert list(read(lambda offset: log.fetch(offset, WHOLE), 9)) == [b"0", b"1", b"x", b"", b"", b"5"]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size", [LARGEST + 1, 3 * LARGEST])
def test_what_unpacks_to_more_than_a_record_may_have_is_not_held(codec, size, monkeypatch):
    monkeypatch.setattr(record_batches, "_MOST_UNPACKED_BYTES", 2 * LARGEST)
    log = Log([1, 1, 1])
    log.batches[1] = packed(1, [bytes(size)], *CODECS[codec])
    (first, bomb, last) = read(lambda offset: log.fetch(offset, WHOLE), 9)
    assert (first, bomb, last) == (b"0", b"", b"2")
    assert isinstance(bomb, Unreadable)


@pytest.mark.parametrize(("codec", "left"), [(3, []), (0, [b"rubbish"])])
def test_a_packed_batch_of_the_format_before_stops_nothing(codec, left):
    old = LegacyRecordBatchBuilder(1, 0, WHOLE)
    old._buffer.extend(bytes(old.size_in_bytes(0, 5, None, b"rubbish")))
    old._encode_msg(0, 0, 5, None, b"rubbish", codec)
    log = Log([1, 1])
    log.batches[0] = old._buffer
    assert list(read(lambda offset: b"".join(log.batches[offset:]), 9)) == [*left, b"1"]

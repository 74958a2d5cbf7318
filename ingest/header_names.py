"""Keeps kafka-python 3.0 from hanging for ever on a header name that is no UTF-8.

The client decodes names strictly; where that fails, its next poll never returns (fetched_records spins
on the batch's dead iterator). Brokers accept such names and librdkafka sends them, so one record would
stop its partition, and the worker with it. Here the bytes that are no ASCII in such a name are
replaced by question marks, in the batch, after its checksum was verified.
"""

from typing import Any

from kafka.record import memory_records
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.util import decode_varint


class _Batch(DefaultRecordBatch):  # type: ignore[misc]
    _pos: int

    def _read_msg(self, *arguments: Any) -> Any:
        start = self._pos
        try:
            return super()._read_msg(*arguments)
        except UnicodeDecodeError:
            _mend(self._buffer, start)
            self._pos = start
            return super()._read_msg(*arguments)


def tolerate_header_names() -> None:
    """Make every consumer of this process read header names that are no UTF-8; harmless when repeated."""
    memory_records.DefaultRecordBatch = _Batch


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

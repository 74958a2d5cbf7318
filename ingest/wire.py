"""What goes between the sandbox and a decoding child: a length, JSON, and raw bytes. No pickle.

item      -> plan as JSON, media
decoded   <- all of Decoded but the crops as JSON, crops as raw uint8
rejected  <- reason and message as JSON, nothing
"""

import socket
import struct
import time

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from ingest.decode import DecodeError, DecodeReason
from ingest.records import CropPlan, Decoded, MediaKind, Region

_HEAD = struct.Struct("!IQ")
_MOST_JSON_BYTES = 4_194_304
_MOST_MESSAGE_CHARS = 400
_READY = b'{"ready":true}'


class WireError(Exception):
    """The other side sent what it must not."""


class Limits(BaseModel):
    """What a child is held to; parent is the process that it must not outlive."""

    model_config = ConfigDict(frozen=True)

    parent: int
    memory_bytes: int
    processor_s: int
    max_pixels: int


class _Answer(BaseModel):
    """A child's answer without its crops; rows is the count of crops."""

    kind: MediaKind
    format: str
    width: int
    height: int
    frames: int
    rows: int
    regions: tuple[Region, ...]


class _Rejection(BaseModel):
    reason: DecodeReason
    message: str


def send_item(sock: socket.socket, data: bytes, plan: CropPlan, deadline: float) -> None:
    """Send one item to a child; deadline in time.monotonic() seconds. Raises OSError, TimeoutError."""
    _send(sock, plan.model_dump_json().encode(), data, deadline)


def receive_item(sock: socket.socket) -> tuple[bytes, CropPlan] | None:
    """Wait for the next item, in the child. None where the parent is gone."""
    try:
        head, body = _receive(sock, None, None)
    except ConnectionError:
        return None
    return bytes(body), CropPlan.model_validate_json(head)


def send_ready(sock: socket.socket) -> None:
    """Tell the parent that the child is up."""
    _send(sock, _READY, b"", None)


def receive_ready(sock: socket.socket, deadline: float) -> None:
    """Wait for a child to come up. Raises OSError, TimeoutError, WireError."""
    if _receive(sock, 0, deadline)[0] != _READY:
        raise WireError("no greeting")


def send_decoded(sock: socket.socket, decoded: Decoded) -> None:
    """Send a result, in the child."""
    answer = _Answer(
        kind=decoded.kind,
        format=decoded.format,
        width=decoded.width,
        height=decoded.height,
        frames=decoded.frames,
        rows=len(decoded.crops),
        regions=decoded.regions,
    )
    _send(sock, answer.model_dump_json().encode(), np.ascontiguousarray(decoded.crops).data.cast("B"), None)


def send_rejection(sock: socket.socket, error: DecodeError) -> None:
    """Send why there is no result, in the child."""
    rejection = _Rejection(reason=error.reason, message=str(error)[:_MOST_MESSAGE_CHARS])
    _send(sock, rejection.model_dump_json().encode(), b"", None)


def receive_decoded(sock: socket.socket, plan: CropPlan, deadline: float) -> Decoded:
    """Wait for a child's answer and believe nothing of it unchecked.

    Raises DecodeError (the child's own word), TimeoutError, OSError (it died), WireError.
    """
    most_rows = plan.frames * (plan.patches + plan.faces * plan.face_patches)
    row_bytes = plan.crop_px * plan.crop_px * 3
    head, body = _receive(sock, most_rows * row_bytes, deadline)
    try:
        if not body:
            rejection = _Rejection.model_validate_json(head)
            raise DecodeError(rejection.reason, rejection.message[:_MOST_MESSAGE_CHARS])
        answer = _Answer.model_validate_json(head)
    except ValidationError as error:
        raise WireError("an answer that is none") from error
    if answer.rows * row_bytes != len(body) or answer.frames < 1 or len(answer.format) > 32:
        raise WireError("an answer that contradicts itself")
    if any(row < 0 or row >= answer.rows for region in answer.regions for row in region.crops):
        raise WireError("a region without its crops")
    return Decoded(
        kind=answer.kind,
        format=answer.format,
        width=answer.width,
        height=answer.height,
        frames=answer.frames,
        crops=np.frombuffer(body, np.uint8).reshape(answer.rows, plan.crop_px, plan.crop_px, 3),
        regions=answer.regions,
    )


def _send(sock: socket.socket, head: bytes, body: bytes | memoryview, deadline: float | None) -> None:
    sock.settimeout(_left(deadline))
    sock.sendall(_HEAD.pack(len(head), len(body)) + head)
    if body:
        sock.settimeout(_left(deadline))
        sock.sendall(body)


def _receive(
    sock: socket.socket, most_body: int | None, deadline: float | None
) -> tuple[bytearray, bytearray]:
    head_length, body_length = _HEAD.unpack(_receive_exactly(sock, _HEAD.size, deadline))
    if head_length > _MOST_JSON_BYTES or (most_body is not None and body_length > most_body):
        raise WireError("more than was asked for")
    return _receive_exactly(sock, head_length, deadline), _receive_exactly(sock, body_length, deadline)


def _receive_exactly(sock: socket.socket, length: int, deadline: float | None) -> bytearray:
    buffer = bytearray(length)
    view, filled = memoryview(buffer), 0
    while filled < length:
        sock.settimeout(_left(deadline))
        count = sock.recv_into(view[filled:])
        if not count:
            raise ConnectionResetError("the other side closed the connection")
        filled += count
    return buffer


def _left(deadline: float | None) -> float | None:
    if deadline is None:
        return None
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left

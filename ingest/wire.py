"""What goes between the sandbox and a decoding child: a length, JSON, and raw bytes. No pickle.

item      -> plan as JSON, media
decoded   <- all of Decoded but the pixels as JSON; crops, then each picture's rows, as raw uint8
rejected  <- reason and message as JSON, nothing
"""

import socket
import struct
import time
from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from ingest.decode import DecodeError, DecodeReason
from ingest.records import Decoded, MediaKind, MediaPlan, Region

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
    """A child's answer without its pixels; rows is the count of crops."""

    kind: MediaKind
    format: str
    width: int
    height: int
    frames: int
    rows: int
    regions: tuple[Region, ...]
    frame_numbers: tuple[int, ...]


class _Rejection(BaseModel):
    reason: DecodeReason
    message: str


def send_item(sock: socket.socket, data: bytes, plan: MediaPlan, deadline: float) -> None:
    """Send one item to a child; deadline in time.monotonic() seconds. Raises OSError, TimeoutError."""
    _send(sock, plan.model_dump_json().encode(), [data], deadline)


def receive_item(sock: socket.socket) -> tuple[bytes, MediaPlan] | None:
    """Wait for the next item, in the child. None where the parent is gone."""
    try:
        head, body = _receive(sock, None, None)
    except ConnectionError:
        return None
    return bytes(body), MediaPlan.model_validate_json(head)


def send_ready(sock: socket.socket) -> None:
    """Tell the parent that the child is up."""
    _send(sock, _READY, [], None)


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
        frame_numbers=decoded.frame_numbers,
    )
    pixels = [decoded.crops, *decoded.pictures.values()]
    body = [np.ascontiguousarray(part).reshape(-1).data for part in pixels]
    _send(sock, answer.model_dump_json().encode(), body, None)


def send_rejection(sock: socket.socket, error: DecodeError) -> None:
    """Send why there is no result, in the child."""
    rejection = _Rejection(reason=error.reason, message=str(error)[:_MOST_MESSAGE_CHARS])
    _send(sock, rejection.model_dump_json().encode(), [], None)


def receive_decoded(sock: socket.socket, plan: MediaPlan, deadline: float) -> Decoded:
    """Wait for a child's answer and believe nothing of it unchecked.

    Raises DecodeError (the child's own word), TimeoutError, OSError (it died), WireError.
    """
    cuts = plan.crops
    most_rows = cuts.frames * (cuts.patches + cuts.faces * cuts.face_patches)
    row_bytes = cuts.crop_px * cuts.crop_px * 3
    frame_bytes = sum(one.height_px * one.width_px * 3 for one in plan.pictures.values())
    head, body = _receive(sock, most_rows * row_bytes + cuts.frames * frame_bytes, deadline)
    try:
        if not body:
            rejection = _Rejection.model_validate_json(head)
            raise DecodeError(rejection.reason, rejection.message[:_MOST_MESSAGE_CHARS])
        answer = _Answer.model_validate_json(head)
    except ValidationError as error:
        raise WireError("an answer that is none") from error
    length = answer.rows * row_bytes + answer.frames * frame_bytes
    if length != len(body) or min(answer.rows, answer.frames) < 1 or len(answer.format) > 32:
        raise WireError("an answer that contradicts itself")
    if len(set(answer.frame_numbers)) != answer.frames:
        raise WireError("frames that are not one another's")
    if any(row < 0 or row >= answer.rows for region in answer.regions for row in region.crops):
        raise WireError("a region without its crops")
    if any(region.frame not in answer.frame_numbers for region in answer.regions):
        raise WireError("a region of no frame")
    pixels = memoryview(body)
    shown, pictures = answer.rows * row_bytes, {}
    for name, one in plan.pictures.items():
        taken = answer.frames * one.height_px * one.width_px * 3
        rows = np.frombuffer(pixels[shown : shown + taken], np.uint8)
        pictures[name] = rows.reshape(answer.frames, one.height_px, one.width_px, 3)
        shown += taken
    return Decoded(
        kind=answer.kind,
        format=answer.format,
        width=answer.width,
        height=answer.height,
        frames=answer.frames,
        crops=np.frombuffer(pixels[: answer.rows * row_bytes], np.uint8).reshape(
            answer.rows, cuts.crop_px, cuts.crop_px, 3
        ),
        regions=answer.regions,
        frame_numbers=answer.frame_numbers,
        pictures=pictures,
    )


def _send(
    sock: socket.socket, head: bytes, body: Sequence[bytes | memoryview], deadline: float | None
) -> None:
    sock.settimeout(_left(deadline))
    sock.sendall(_HEAD.pack(len(head), sum(len(part) for part in body)) + head)
    for part in body:
        sock.settimeout(_left(deadline))
        sock.sendall(part)


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

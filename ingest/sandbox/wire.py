"""The messages between the sandbox and a decoding child: JSON and raw bytes. No pickle.

A message on the stream socket is two lengths, a head, a body; neither side believes the other's lengths.

greeting  <- whether the child is ready, or why it refuses, as JSON, nothing
item      -> plan and trust anchors as JSON, media
decoded   <- all of Decoded but pixels and provenance as JSON; crops, then each picture's rows, as raw uint8
provenance <- as JSON, nothing; behind what was decoded, where anchors came with the item
rejected  <- reason and message as JSON, nothing
"""

import contextlib
import math
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from ingest.picture_hash import PICTURE_BYTES
from ingest.records import Decoded, MediaKind, MediaPlan, PlacesPlan, Plan, Provenance, Region
from ingest.sandbox.decode import DecodeError, DecodeReason

_LENGTHS = struct.Struct("!IQ")
_MOST_HEAD_BYTES = 4_194_304

# Called again and again while one side waits for the other, raises to give up. Whoever must not wait for
# ever gives the socket a timeout, which is how often it is called where nothing moves.
Waiting = Callable[[], None]


class WireError(Exception):
    """The other side broke the protocol."""


def wait() -> None:
    """Wait as long as it takes."""


def send(sock: socket.socket, head: bytes, body: Sequence[bytes | memoryview], waiting: Waiting) -> None:
    """Send a message. Raises OSError, and what waiting raises."""
    _send_all(sock, _LENGTHS.pack(len(head), sum(len(part) for part in body)) + head, waiting)
    for part in body:
        _send_all(sock, part, waiting)


def receive(sock: socket.socket, most_body: int | None, waiting: Waiting) -> tuple[bytearray, bytearray]:
    """Receive a message's head and body; most_body in bytes, None for any.

    Raises OSError, WireError where it is larger, and what waiting raises.
    """
    head_length, body_length = _LENGTHS.unpack(_receive_exactly(sock, _LENGTHS.size, waiting))
    if head_length > _MOST_HEAD_BYTES or (most_body is not None and body_length > most_body):
        raise WireError("more than was asked for")
    return _receive_exactly(sock, head_length, waiting), _receive_exactly(sock, body_length, waiting)


def _send_all(sock: socket.socket, data: bytes | memoryview, waiting: Waiting) -> None:
    view, sent = memoryview(data), 0
    while sent < len(view):
        with contextlib.suppress(TimeoutError):
            sent += sock.send(view[sent:])
        waiting()


def _receive_exactly(sock: socket.socket, length: int, waiting: Waiting) -> bytearray:
    buffer = bytearray(length)
    view, filled = memoryview(buffer), 0
    while filled < length:
        try:
            count = sock.recv_into(view[filled:])
        except TimeoutError:
            waiting()
            continue
        if not count:
            raise ConnectionResetError("the other side closed the connection")
        filled += count
        waiting()
    return buffer


_MOST_MESSAGE_CHARS = 400
_MOST_FORMAT_CHARS = 16
_MOST_FRAME_NUMBER = 2**53


class _Order(BaseModel):
    """What is to be done with an item; anchors as in `receive_item`."""

    # The plan of places has a field that must be there and allows no others, so it is tried first.
    plan: Annotated[PlacesPlan | MediaPlan, Field(union_mode="left_to_right")]
    anchors: str | None


class _Greeting(BaseModel):
    refusal: str | None


class _Answer(BaseModel, ser_json_bytes="hex", val_json_bytes="hex"):
    """A child's answer without its pixels; rows is the count of crops."""

    kind: MediaKind
    format: str
    width: int
    height: int
    frames: int
    rows: int
    regions: tuple[Region, ...]
    frame_numbers: tuple[int, ...]
    length: int
    others: int = Field(0, ge=0, le=_MOST_FRAME_NUMBER)
    incomplete: bool = False
    picture_hashes: bytes
    frame_s: float = Field(ge=0, allow_inf_nan=False)


@dataclass(frozen=True)
class _Most:
    """The most that an answer to a plan can have; picture_bytes are of each frame's pictures together."""

    crop_px: int
    rows: int
    frames: int
    picture_bytes: int
    faces: int | None
    """of a frame; None where each crop is a region and nothing else is"""

    @classmethod
    def of(cls, plan: Plan) -> "_Most":
        if isinstance(plan, PlacesPlan):
            return cls(plan.crop_px, len(plan.places), len(plan.frames), 0, None)
        crops = plan.crops
        picture_bytes = sum(picture.height_px * picture.width_px * 3 for picture in plan.pictures.values())
        rows = crops.frames * (crops.patches + crops.faces * crops.face_patches)
        return cls(crops.crop_px, rows, crops.frames, picture_bytes, crops.faces)

    @property
    def row_bytes(self) -> int:
        return self.crop_px * self.crop_px * 3

    def regions(self, answer: _Answer) -> int:
        return answer.rows if self.faces is None else answer.frames * (1 + self.faces)


class _Rejection(BaseModel):
    reason: DecodeReason
    message: str


def send_greeting(sock: socket.socket, refusal: str | None) -> None:
    """Tell the parent that the child is up, or why it refuses to work."""
    send(sock, _Greeting(refusal=refusal).model_dump_json().encode(), [], wait)


def receive_greeting(sock: socket.socket, waiting: Waiting) -> str | None:
    """Wait for a child to come up; give its refusal, if it refuses. Raises OSError, WireError."""
    try:
        return _Greeting.model_validate_json(receive(sock, 0, waiting)[0]).refusal
    except ValidationError as error:
        raise WireError("no greeting") from error


def send_item(sock: socket.socket, data: bytes, plan: Plan, anchors: str | None, waiting: Waiting) -> None:
    """Send one item to a child. Raises OSError, and what waiting raises."""
    send(sock, _Order(plan=plan, anchors=anchors).model_dump_json().encode(), [data], waiting)


def receive_item(sock: socket.socket) -> tuple[bytes, Plan, str | None] | None:
    """Wait for the next item, in the child. None where the parent is gone.

    The last is PEM of the trust anchors by which its provenance is read; None: it is not.
    """
    try:
        head, body = receive(sock, None, wait)
    except ConnectionError:
        return None
    order = _Order.model_validate_json(head)
    return bytes(body), order.plan, order.anchors


def send_decoded(sock: socket.socket, decoded: Decoded) -> None:
    facts = {name: getattr(decoded, name) for name in _Answer.model_fields if name != "rows"}
    answer = _Answer(rows=len(decoded.crops), **facts)
    pixels = [decoded.crops, *decoded.pictures.values()]
    body = [np.ascontiguousarray(part).reshape(-1).data for part in pixels]
    send(sock, answer.model_dump_json().encode(), body, wait)


def send_provenance(sock: socket.socket, provenance: Provenance) -> None:
    send(sock, provenance.model_dump_json().encode(), [], wait)


def receive_provenance(sock: socket.socket, waiting: Waiting) -> Provenance:
    """Wait for the last part of a child's answer. Raises OSError, WireError, and what waiting raises."""
    try:
        return Provenance.model_validate_json(receive(sock, 0, waiting)[0])
    except ValidationError as error:
        raise WireError("no provenance") from error


def send_rejection(sock: socket.socket, error: DecodeError) -> None:
    rejection = _Rejection(reason=error.reason, message=_one_line(str(error)))
    send(sock, rejection.model_dump_json().encode(), [], wait)


def receive_decoded(sock: socket.socket, plan: Plan, max_pixels: int, waiting: Waiting) -> Decoded:
    """Wait for a child's answer and believe nothing of it unchecked.

    Raises DecodeError (the child's own word), OSError (it died), WireError, and what waiting raises.
    """
    most = _Most.of(plan)
    head, body = receive(sock, most.rows * most.row_bytes + most.frames * most.picture_bytes, waiting)
    try:
        if not body:
            rejection = _Rejection.model_validate_json(head)
            raise DecodeError(rejection.reason, _one_line(rejection.message))
        answer = _Answer.model_validate_json(head)
    except ValidationError as error:
        raise WireError("an answer that is none") from error
    if wrong := _contradiction(answer, most, max_pixels, len(body)):
        raise WireError(wrong)
    pixels = memoryview(body)
    taken_bytes, pictures = answer.rows * most.row_bytes, {}
    crops = np.frombuffer(pixels[:taken_bytes], np.uint8)
    for name, picture in plan.pictures.items() if isinstance(plan, MediaPlan) else ():
        taken = answer.frames * picture.height_px * picture.width_px * 3
        rows = np.frombuffer(pixels[taken_bytes : taken_bytes + taken], np.uint8)
        pictures[name] = rows.reshape(answer.frames, picture.height_px, picture.width_px, 3)
        taken_bytes += taken
    facts = {name: fact for name, fact in answer if name != "rows"}
    crops = crops.reshape(answer.rows, most.crop_px, most.crop_px, 3)
    return Decoded(crops=crops, pictures=pictures, **facts)


def _contradiction(answer: _Answer, most: "_Most", max_pixels: int, body_bytes: int) -> str | None:
    """Return how an answer contradicts its plan; None: it does not."""
    numbers = set(answer.frame_numbers)
    if answer.rows * most.row_bytes + answer.frames * most.picture_bytes != body_bytes:
        return "an answer that contradicts itself"
    if not 1 <= answer.rows <= most.rows:
        return "crops that nobody asked for, or none"
    if not (len(answer.format) <= _MOST_FORMAT_CHARS and answer.format.isascii() and answer.format.isalnum()):
        return "a format without a name"
    if min(answer.width, answer.height) < 1 or answer.width * answer.height > max_pixels:
        return "a picture beyond the limit"
    if not 1 <= answer.frames <= most.frames:
        return "frames that nobody asked for, or none"
    if not len(numbers) == len(answer.frame_numbers) == answer.frames:
        return "frames that are not one another's"
    if not all(0 <= number < answer.length <= _MOST_FRAME_NUMBER for number in numbers):
        return "a frame's number out of range"
    pictures, rest = divmod(len(answer.picture_hashes), PICTURE_BYTES)
    if rest or pictures > answer.frames:
        return "hashes of no picture"
    if len(answer.regions) > most.regions(answer) or not all(r.frame in numbers for r in answer.regions):
        return "a region of no frame"
    if not all(_has_its_crops(region, answer.rows) for region in answer.regions):
        return "a region without its crops"
    if not all(_is_somewhere(region, max_pixels) for region in answer.regions):
        return "a region outside of space and time"
    return None


def _has_its_crops(region: Region, rows: int) -> bool:
    crops = region.crops
    return bool(crops) and crops[0] >= 0 and crops[-1] < rows and all(a < b for a, b in pairwise(crops))


def _is_somewhere(region: Region, max_pixels: int) -> bool:
    left, top, width, height = region.box
    inside = min(left, top) >= 0 and min(width, height) >= 1 and (left + width) * (top + height) <= max_pixels
    return inside and (region.time_s is None or math.isfinite(region.time_s))


def _one_line(message: str) -> str:
    cut = message[:_MOST_MESSAGE_CHARS]
    return "".join(sign if sign.isprintable() else " " for sign in cut)

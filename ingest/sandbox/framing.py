"""One message on a stream socket: two lengths, a head, a body. Neither side believes the other's lengths."""

import contextlib
import socket
import struct
from collections.abc import Callable, Sequence

_LENGTHS = struct.Struct("!IQ")
_MOST_HEAD_BYTES = 4_194_304

Waiting = Callable[[], None]
"""Called again and again while one side waits for the other, raises to give up. Whoever must not wait for
ever gives the socket a timeout, which is how often it is called where nothing moves."""


class WireError(Exception):
    """The other side sent what it must not."""


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

"""What media has cost that has no answer yet, since the host ended each try to decode it."""

import hashlib
import threading

_MOST = 1_000


class Unanswered:
    """The processor seconds of tries that the host ended, by media, until that has its answer.

    An item comes back after them, as another record of the same bytes would: then both pay.
    """

    def __init__(self) -> None:
        self._seconds: dict[bytes, float] = {}
        self._lock = threading.Lock()

    def seconds(self, data: bytes) -> float:
        """What its tries took so far."""
        return self._seconds.get(_key(data), 0.0) if self._seconds else 0.0

    def add(self, data: bytes, seconds: float) -> None:
        """Add what one more try took; of more media than anybody tries at a time, the oldest is forgotten."""
        with self._lock:
            self._seconds[_key(data)] = self._seconds.pop(_key(data), 0.0) + seconds
            if len(self._seconds) > _MOST:
                del self._seconds[next(iter(self._seconds))]

    def end(self, data: bytes) -> None:
        """It has its answer."""
        if self._seconds:
            with self._lock:
                self._seconds.pop(_key(data), None)


def _key(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()

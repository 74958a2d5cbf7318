"""Which releases the workers of one model store may be using, so that none removes what another needs.

One worker beside one TorchServe is the rule, but nothing keeps two from sharing both. Each worker writes
down what it holds, in a file that it keeps locked: the kernel opens the lock when the process ends, however
it ends, and what a dead worker held is free.
"""

import fcntl
import json
import uuid
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

_LOCK = "lock"


class Holdings:
    """One worker's entry in a model store; close it, or leave it to the end of the process."""

    def __init__(self, store: Path) -> None:
        """Enter an entry that holds nothing. Raises OSError."""
        self._folder = store / "holdings"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._path = self._folder / f"{uuid.uuid4().hex}.json"
        with self._alone():
            self._file = self._path.open("x+")
            fcntl.flock(self._file, fcntl.LOCK_EX)
            self._write(())

    def close(self) -> None:
        """Hold nothing any more."""
        self._path.unlink(missing_ok=True)
        self._file.close()

    def hold(self, digests: Collection[str]) -> None:
        """Hold these releases in place of those before. Raises OSError."""
        with self._alone():
            self._write(digests)

    @contextmanager
    def hold_alone(self, digests: Collection[str]) -> Iterator[set[str]]:
        """Hold these releases, and yield them with what all others hold; nobody changes that meanwhile.

        Entries of processes that ended are removed. Raises OSError.
        """
        with self._alone():
            self._write(digests)
            yield set(digests) | self._others()

    def _write(self, digests: Collection[str]) -> None:
        self._file.seek(0)
        self._file.truncate()
        json.dump(sorted(digests), self._file)
        self._file.flush()

    def _others(self) -> set[str]:
        held: set[str] = set()
        for path in self._folder.glob("*.json"):
            if path == self._path:
                continue
            with path.open() as file:
                if _is_free(file.fileno()):
                    path.unlink(missing_ok=True)
                else:
                    held |= set(json.load(file))
        return held

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with (self._folder / _LOCK).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _is_free(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True

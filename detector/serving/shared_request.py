"""A request to TorchServe in a file that its handler reads, where both are on one host: no body travels.

A body of six megabytes is copied six times, by the client, by Netty and between TorchServe's processes. The
file lies in a folder of its own beside TorchServe's management socket, which only this user may enter, and
the request names it. What cannot be shared goes as a body.
"""

import contextlib
import fcntl
import os
import re
import stat
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import structlog

from detector.settings import DetectorSettings

SHARED_TYPE = "application/x-forgewatch-shared"
MAX_REQUEST_BYTES = 67_108_864
"""Of any request to the TorchServe that this package starts."""
LEAST_BYTES = 262_144
"""A smaller request goes as a body: a file costs as much."""

_NAME = re.compile(rb"([0-9a-f]{32}\.safetensors) ([1-9][0-9]{0,9})")
_FOLDER = "requests"
_LEFT_BEHIND_S = 60.0

log = structlog.get_logger()


class SharedRequestError(ValueError):
    """A request names no file that a worker of this user put there for it."""


def shared_folder(settings: DetectorSettings) -> Path | None:
    """Where requests are shared: beside TorchServe's management socket; None where that is none."""
    address = settings.torchserve_management_url
    return Path(address.removeprefix("unix:")).parent / _FOLDER if address.startswith("unix:") else None


class SharedRequests:
    """The worker's side: files in the folder, each for one request; usable from several threads."""

    def __init__(self, folder: Path | None) -> None:
        """Remove files that killed workers left in the folder; None: nothing is shared."""
        self._folder = folder
        # Nobody holds the lock of what killed workers left. A worker locks its file just after it made it.
        for path in folder.glob("*.safetensors") if folder is not None else ():
            with contextlib.suppress(OSError), path.open("rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if time.time() - path.stat().st_mtime > _LEFT_BEHIND_S:
                    path.unlink()

    def give_up(self, problem: str) -> None:
        """Share nothing any more: TorchServe does not see the files, or none can be written."""
        if self._folder is not None:
            log.warning("requests go to TorchServe as bodies, which is slower", problem=problem)
        self._folder = None

    @contextlib.contextmanager
    def put(self, data: bytes) -> Iterator[bytes | None]:
        """Lay the data down until the block ends; gives the body that names it, None where nothing does."""
        folder = self._folder
        if folder is None or not LEAST_BYTES <= len(data) <= MAX_REQUEST_BYTES:
            yield None
            return
        path = folder / f"{uuid.uuid4().hex}.safetensors"
        with contextlib.ExitStack() as until:
            until.callback(path.unlink, missing_ok=True)
            try:
                folder.mkdir(mode=0o700, exist_ok=True)  # a TorchServe that starts anew takes it out
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                file = until.enter_context(os.fdopen(os.open(path, flags, 0o600), "wb"))
                fcntl.flock(file, fcntl.LOCK_EX)  # held until the end: who sweeps sees that somebody lives
                file.write(data)
                file.flush()
            except OSError as error:
                log.warning("a request could not be shared", error=str(error))
                until.close()
                yield None
                return
            yield f"{path.name} {len(data)}".encode()


def read_shared(body: bytes, folder: Path | None) -> bytes:
    """The handler's side: read the file that the body names. Raises SharedRequestError."""
    named = _NAME.fullmatch(body)
    if named is None or folder is None:
        raise SharedRequestError("no name of a shared request")
    size = int(named[2])
    try:
        at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            if not _is_own(os.fstat(at), stat.S_ISDIR):
                raise SharedRequestError("the folder of shared requests is open to others")
            descriptor = os.open(named[1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=at)
        finally:
            os.close(at)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(descriptor)
            # A second name would be in somebody else's hands; a pipe would have the worker wait.
            if not _is_own(status, stat.S_ISREG) or status.st_nlink != 1:
                raise SharedRequestError("a shared request is another's, or no file")
            if status.st_size != size or size > MAX_REQUEST_BYTES:
                raise SharedRequestError(f"a shared request has {status.st_size} bytes, not {size}")
            data = file.read(size)
    except OSError as error:
        raise SharedRequestError(f"a shared request cannot be read: {error.strerror}") from error
    if len(data) != size:
        raise SharedRequestError("a shared request was cut while it was read")
    return data


def _is_own(status: os.stat_result, is_kind: Callable[[int], bool]) -> bool:
    return is_kind(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077

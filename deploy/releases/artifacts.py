"""The store of release artifacts: one folder a digest, which is complete and verified or not there.

Files arrive one by one, manifest.json last. Only then is the whole folder verified and renamed into its
place, so that no reader ever sees half an artifact. Whatever changes which bytes lie under a name takes the
store's lock, so nothing comes between the check and the rename.
"""

import fcntl
import hashlib
import os
import re
import secrets
import shutil
import time
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from deploy.releases.evidence import Evidence
from detector.artifact import EVALUATION, FILES, MANIFEST, verify
from detector.manifest import ArtifactError
from ingest.durable import make_folder, rename_durably

KEPT_S = 24 * 3600
"""Seconds that an unfinished upload, or an artifact that no release names, is kept after its last use."""

_DIGEST = re.compile(r"[0-9a-f]{64}")


class StoreError(Exception):
    """The store does not do this; fatal for the request."""


class ArtifactMissingError(StoreError):
    """No complete artifact of this digest, or no such file in it."""


class ArtifactRefusedError(StoreError):
    """A digest or file name that is none, or bytes that are not what the manifest says."""


class ArtifactTooLargeError(StoreError):
    """A file over the limit."""


class ArtifactStore:
    """Artifacts below one folder, for any number of threads and processes."""

    def __init__(self, root: Path, max_file_bytes: int) -> None:
        """Open or create the store. Raises OSError."""
        self._root = root
        self._incoming = root / ".incoming"
        self._lock = self._incoming / ".lock"
        self._max_file_bytes = max_file_bytes
        make_folder(self._incoming)
        self._lock.touch()

    def folder(self, digest: str) -> Path:
        """The folder of a complete artifact; raises ArtifactRefusedError, ArtifactMissingError."""
        _check(digest, MANIFEST)
        folder = self._root / digest
        if not folder.is_dir():
            raise ArtifactMissingError(f"no artifact {digest}")
        return folder

    def file(self, digest: str, name: str) -> Path:
        """The path of one file of a complete artifact; raises ArtifactRefusedError, ArtifactMissingError."""
        _check(digest, name)
        path = self.folder(digest) / name
        if not path.is_file():
            raise ArtifactMissingError(f"no file {name} in artifact {digest}")
        return path

    def evidence(self, digest: str) -> Evidence:
        """Read every byte of an artifact anew and say what it is now. It is kept for KEPT_S from here on.

        Raises ArtifactRefusedError where a file is not what the manifest says, ArtifactMissingError.
        """
        with _alone(self._lock):
            folder = self.folder(digest)
            os.utime(folder)
        try:
            artifact = verify(folder)
            evaluation = (folder / EVALUATION).read_bytes()
            return Evidence(
                artifact.digest,
                hashlib.sha256(evaluation).hexdigest(),
                artifact.manifest.parent,
                artifact.manifest.classes,
                evaluation,
            )
        except (ArtifactError, OSError) as error:
            raise ArtifactRefusedError(f"artifact {digest} is damaged: {error}") from error

    def upload(self, digest: str, name: str) -> "Upload":
        """Begin to receive one file; raises ArtifactRefusedError."""
        _check(digest, name)
        return Upload(self._incoming, self._root / digest, name, self._lock, self._max_file_bytes)

    def collect(self, named: Container[str]) -> list[str]:
        """Remove what was not used for KEPT_S: unfinished uploads, and artifacts that are not `named`.

        named: the digests of every release in the ledger. Returns the names of what was removed.
        Raises OSError.
        """
        before = time.time() - KEPT_S
        with _alone(self._lock):
            old = [
                path
                for path in (*self._root.iterdir(), *self._incoming.iterdir())
                if self._may_go(path, named) and _used_before(path, before)
            ]
            if not old:
                return []
            aside = self._incoming / f".collected.{secrets.token_hex(8)}"
            make_folder(aside)
            for path in old:
                with suppress(FileNotFoundError):  # an upload that ends now takes its file with it
                    path.rename(aside / f"{path.parent.name} {path.name}")
        shutil.rmtree(aside)
        return [path.name for path in old]

    def _may_go(self, path: Path, named: Container[str]) -> bool:
        if path.parent == self._incoming:
            return path != self._lock
        return _DIGEST.fullmatch(path.name) is not None and path.name not in named


class Upload:
    """One file on its way in: write its bytes, then commit; leaving without a commit drops it."""

    def __init__(self, incoming: Path, final: Path, name: str, lock: Path, max_bytes: int) -> None:
        self._staging = incoming / final.name
        self._final = final
        self._name = name
        self._lock = lock
        self._left = max_bytes
        self._limit = max_bytes
        # Beside the staged files, not among them: what is being written is never part of an artifact.
        self._part = incoming / f"{final.name}.{name}.{secrets.token_hex(8)}"
        self._stream = self._part.open("xb")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()
        self._part.unlink(missing_ok=True)

    def write(self, chunk: bytes) -> None:
        """Take the next bytes; raises ArtifactTooLargeError."""
        self._left -= len(chunk)
        if self._left < 0:
            raise ArtifactTooLargeError(f"a file has at most {self._limit} bytes")
        self._stream.write(chunk)

    def commit(self) -> None:
        """Make the file durable; after manifest.json, verify the artifact and put it in its place.

        A file of an artifact that is already complete is dropped: its name says what it holds.
        Raises ArtifactRefusedError where the artifact is not what its manifest and digest say.
        """
        self._stream.close()
        with _alone(self._lock):
            if self._final.is_dir():
                os.utime(self._final)
                shutil.rmtree(self._staging, ignore_errors=True)
                return
            make_folder(self._staging)
            rename_durably(self._part, self._staging / self._name)
            if self._name == MANIFEST:
                self._complete()

    def _complete(self) -> None:
        try:
            named = {MANIFEST, *verify(self._staging, self._final.name).manifest.files}
        except (ArtifactError, OSError) as error:
            (self._staging / MANIFEST).unlink(missing_ok=True)
            raise ArtifactRefusedError(f"the artifact is not complete: {error}") from error
        for path in self._staging.iterdir():
            if path.name not in named:
                path.unlink()  # no digest vouches for it, so it is not served
        rename_durably(self._staging, self._final)


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Hold a file's lock: no other thread or process is inside at the same time."""
    with lock.open("ab") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _used_before(path: Path, time_s: float) -> bool:
    try:
        return path.stat().st_mtime < time_s
    except FileNotFoundError:
        return False


def _check(digest: str, name: str) -> None:
    if not _DIGEST.fullmatch(digest):
        raise ArtifactRefusedError("a digest is 64 hexadecimal digits in lower case")
    if name not in FILES:
        raise ArtifactRefusedError(f"an artifact has no such file; it may have {', '.join(sorted(FILES))}")

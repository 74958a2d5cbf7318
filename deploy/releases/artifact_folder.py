"""The store of release artifacts in a folder: one folder a digest, complete and verified or not there.

Files arrive one by one, manifest.json last. Only then is the whole folder verified and renamed into its
place, so that no reader ever sees half an artifact. Whatever changes which bytes lie under a name takes the
store's lock, so nothing comes between the check and the rename.
"""

import fcntl
import os
import secrets
import shutil
import time
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self

from deploy.releases.artifacts import (
    KEPT_S,
    PIECE_BYTES,
    ArtifactMissingError,
    ArtifactRefusedError,
    Evidence,
    Stored,
    check_name,
    evidence_in,
    is_digest,
    require_room,
)
from detector.release.artifact import MANIFEST, verify
from detector.release.manifest import ArtifactError
from ingest.durable import make_folder, rename_durably


class ArtifactFolder:
    """Artifacts below one folder, for any number of threads and processes of one host."""

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
        check_name(digest, MANIFEST)
        folder = self._root / digest
        if not folder.is_dir():
            raise ArtifactMissingError(f"no artifact {digest}")
        return folder

    def read(self, digest: str, name: str) -> Stored:
        """One file of a complete artifact; raises ArtifactRefusedError, ArtifactMissingError."""
        check_name(digest, name)
        try:
            stream = (self.folder(digest) / name).open("rb")
        except FileNotFoundError as error:
            raise ArtifactMissingError(f"no file {name} in artifact {digest}") from error
        return Stored(os.fstat(stream.fileno()).st_size, _pieces(stream))

    def evidence(self, digest: str) -> Evidence:
        """Read every byte of an artifact anew and say what it is now. It is kept for KEPT_S from here on.

        Raises ArtifactRefusedError where a file is not what the manifest says, ArtifactMissingError.
        """
        with _alone(self._lock):
            folder = self.folder(digest)
            os.utime(folder)
        return evidence_in(folder, digest)

    def hindrance(self) -> str | None:
        """Give in one line why no artifact can be read or stored now; None: they can."""
        if os.access(self._incoming, os.W_OK | os.X_OK):
            return None
        return f"no artifact can be stored: the folder {self._incoming} is gone or cannot be written"

    def upload(self, digest: str, name: str) -> "FolderUpload":
        """Begin to receive one file; raises ArtifactRefusedError."""
        check_name(digest, name)
        return FolderUpload(self._incoming, self._root / digest, name, self._lock, self._max_file_bytes)

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
        return is_digest(path.name) and path.name not in named


class FolderUpload:
    """One file on its way in: write its bytes, then commit; leaving without a commit drops it."""

    def __init__(self, incoming: Path, final: Path, name: str, lock: Path, max_bytes: int) -> None:
        self._staging = incoming / final.name
        self._final = final
        self._name = name
        self._lock = lock
        self._max_bytes = max_bytes
        self._written = 0
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
        self._written += len(chunk)
        require_room(self._written, self._max_bytes)
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


def _pieces(stream: BinaryIO) -> Iterator[bytes]:
    with stream:
        while piece := stream.read(PIECE_BYTES):
            yield piece

"""The store of release artifacts: one folder a digest, which is complete and verified or not there.

Files arrive one by one, manifest.json last. Only then is the whole folder verified and renamed
into its place, so that no reader ever sees half an artifact.
"""

import os
import re
import secrets
import shutil
from pathlib import Path
from types import TracebackType
from typing import Self

from deploy.releases.approval import Evidence
from detector.artifact import EVALUATION, MANIFEST, sha256_of, verify
from detector.manifest import ArtifactError

_DIGEST = re.compile(r"[0-9a-f]{64}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class StoreError(Exception):
    """The store does not do this; fatal for the request."""


class ArtifactMissing(StoreError):  # noqa: N818 - it reads as what it says
    """No complete artifact of this digest, or no such file in it."""


class ArtifactRefused(StoreError):  # noqa: N818
    """A digest or file name that is none, or bytes that are not what the manifest says."""


class ArtifactTooLarge(StoreError):  # noqa: N818
    """A file over the limit, or too many files."""


class ArtifactStore:
    """Artifacts below one folder. One process writes, any number read."""

    def __init__(self, root: Path, max_file_bytes: int, max_files: int) -> None:
        """Open or create the store and drop uploads that an earlier process left unfinished."""
        self._root = root
        self._incoming = root / ".incoming"
        self._max_file_bytes = max_file_bytes
        self._max_files = max_files
        shutil.rmtree(self._incoming, ignore_errors=True)
        self._incoming.mkdir(parents=True)

    def folder(self, digest: str) -> Path:
        """The folder of a complete artifact; raises ArtifactRefused, ArtifactMissing."""
        _check(digest, MANIFEST)
        folder = self._root / digest
        if not folder.is_dir():
            raise ArtifactMissing(f"no artifact {digest}")
        return folder

    def file(self, digest: str, name: str) -> Path:
        """The path of one file of a complete artifact; raises ArtifactRefused, ArtifactMissing."""
        _check(digest, name)
        path = self.folder(digest) / name
        if not path.is_file():
            raise ArtifactMissing(f"no file {name} in artifact {digest}")
        return path

    def evidence(self, digest: str) -> Evidence:
        """Read every byte of an artifact anew and say what its digests are now.

        Raises ArtifactRefused where a file is not what the manifest says, ArtifactMissing.
        """
        folder = self.folder(digest)
        try:
            artifact = verify(folder)
            return Evidence(artifact.digest, sha256_of(folder / EVALUATION))
        except (ArtifactError, OSError) as error:
            raise ArtifactRefused(f"artifact {digest} is damaged: {error}") from error

    def upload(self, digest: str, name: str) -> "Upload":
        """Begin to receive one file; raises ArtifactRefused, ArtifactTooLarge."""
        _check(digest, name)
        staging = self._incoming / digest
        staging.mkdir(exist_ok=True)
        present = {path.name for path in staging.iterdir() if not path.name.startswith(".")}
        if len(present | {name}) > self._max_files:
            raise ArtifactTooLarge(f"an artifact has at most {self._max_files} files")
        return Upload(staging / name, self._root / digest, self._max_file_bytes)


class Upload:
    """One file on its way in: write its bytes, then commit; leaving without a commit drops it."""

    def __init__(self, path: Path, final: Path, max_bytes: int) -> None:
        self._path = path
        self._final = final
        self._left = max_bytes
        self._limit = max_bytes
        self._part = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        self._stream = self._part.open("xb")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()
        self._part.unlink(missing_ok=True)

    def write(self, chunk: bytes) -> None:
        """Take the next bytes; raises ArtifactTooLarge."""
        self._left -= len(chunk)
        if self._left < 0:
            raise ArtifactTooLarge(f"a file has at most {self._limit} bytes")
        self._stream.write(chunk)

    def commit(self) -> None:
        """Make the file durable; after manifest.json, verify the artifact and put it in its place.

        A file of an artifact that is already complete is dropped: its name says what it holds.
        Raises ArtifactRefused where the artifact is not what its manifest and digest say.
        """
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()
        if self._final.is_dir():
            shutil.rmtree(self._path.parent, ignore_errors=True)
            return
        self._part.replace(self._path)
        if self._path.name == MANIFEST:
            self._complete()

    def _complete(self) -> None:
        staging = self._path.parent
        try:
            named = {MANIFEST, *verify(staging, self._final.name).manifest.files}
        except (ArtifactError, OSError) as error:
            self._path.unlink(missing_ok=True)
            raise ArtifactRefused(f"the artifact is not complete: {error}") from error
        for path in staging.iterdir():
            if path.name not in named:
                path.unlink()  # no digest vouches for it, so it is not served
        _sync(staging)
        staging.rename(self._final)
        _sync(self._final.parent)


def _check(digest: str, name: str) -> None:
    if not _DIGEST.fullmatch(digest):
        raise ArtifactRefused("a digest is 64 hexadecimal digits in lower case")
    if not _NAME.fullmatch(name):
        raise ArtifactRefused("a file name has letters, digits, dots, dashes, 1 to 100 of them")


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

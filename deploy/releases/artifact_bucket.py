"""The store of release artifacts in an object store: complete and verified, or not there.

    DIGEST/NAME             a file of an artifact, which is there as a whole once DIGEST/manifest.json is
    .incoming/DIGEST/NAME   a file on its way in, whichever of the servers took it
    .used/DIGEST            when somebody last put the artifact, or looked at its evidence

That is a folder store's layout, so the one is copied into the other as it is. There is no lock: only bytes
that were verified against DIGEST are ever written below it, so any number of servers write the same there,
and the manifest last. What is collected loses its manifest first.
"""

import shutil
import tempfile
from collections import defaultdict
from collections.abc import Container, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Self

from deploy.releases.artifacts import (
    KEPT_S,
    PIECE_BYTES,
    ArtifactMissingError,
    ArtifactRefusedError,
    ArtifactsUnavailableError,
    Evidence,
    Stored,
    check_name,
    evidence_in,
    is_digest,
    require_room,
)
from detector.release.artifact import MANIFEST, load, verify
from detector.release.manifest import ArtifactError
from memory.crops.object_store import Found, ObjectStore

_INCOMING, _USED, _CLOCK = ".incoming", ".used", ".clock"


class ArtifactBucket:
    """Artifacts below one URL, for any number of threads, processes and hosts."""

    def __init__(self, url: str, max_file_bytes: int) -> None:
        """Nothing is asked yet: a bucket that is away for a while stops no server from starting."""
        self._objects = ObjectStore(url)
        self._max_file_bytes = max_file_bytes

    def read(self, digest: str, name: str) -> Stored:
        """One file of a complete artifact, in pieces.

        Raises ArtifactRefusedError, ArtifactMissingError, ArtifactsUnavailableError.
        """
        check_name(digest, name)
        with _failing():
            self._require_complete(digest)
            try:
                size = self._objects.size(f"{digest}/{name}")
            except FileNotFoundError as error:
                raise ArtifactMissingError(f"no file {name} in artifact {digest}") from error
        return Stored(size, self._pieces(f"{digest}/{name}", size))

    def evidence(self, digest: str) -> Evidence:
        """Read every byte of an artifact anew and say what it is now. It is kept for KEPT_S from here on.

        Raises ArtifactRefusedError where a file is not what the manifest says, ArtifactMissingError,
        ArtifactsUnavailableError.
        """
        check_name(digest, MANIFEST)
        with tempfile.TemporaryDirectory() as name, _failing():
            folder = Path(name)
            self._require_complete(digest)
            self._use(digest)
            try:
                self._objects.download(f"{digest}/{MANIFEST}", folder / MANIFEST)
                for each in load(folder).manifest.files:
                    self._objects.download(f"{digest}/{each}", folder / each)
            except (ArtifactError, FileNotFoundError) as error:
                self._require_complete(digest)
                raise ArtifactRefusedError(f"artifact {digest} is damaged: {error}") from error
            return evidence_in(folder, digest)

    def upload(self, digest: str, name: str) -> "BucketUpload":
        """Begin to receive one file; raises ArtifactRefusedError."""
        check_name(digest, name)
        return BucketUpload(self, digest, name, self._max_file_bytes)

    def collect(self, named: Container[str]) -> list[str]:
        """Remove what was not used for KEPT_S: unfinished uploads, and artifacts that are not `named`.

        named: the digests of every release in the ledger. Ages are by the store's own clock. An artifact
        that is named in the very moment of its removal is refused where it is used, and can be put again.
        Returns the names of what was removed. Raises ArtifactsUnavailableError.
        """
        with _failing():
            # Some stores make a bucket that they lack of the first write: a mistyped URL would pass.
            self._objects.require_there()
            self._objects.write(_CLOCK, b"")
            before = self._objects.modified(_CLOCK) - timedelta(seconds=KEPT_S)
            self._objects.abort_uploads(before)
            removed = []
            for digest, objects in _by_digest(self._objects.found()).items():
                if not _all_older(objects, before):
                    continue
                staged = [one for one in objects if one.name.startswith(_INCOMING)]
                unnamed = digest not in named and self._unused(digest, before)
                going = objects if unnamed else staged
                # Without its manifest, what is left of an artifact is not there.
                for one in sorted(going, key=lambda one: one.name != f"{digest}/{MANIFEST}"):
                    self._objects.delete(one.name)
                if going:
                    removed.append(digest)
        return removed

    def hindrance(self) -> str | None:
        """Give in one line why no artifact can be read or stored now; None: they can."""
        problem = self._objects.hindrance()
        return f"no artifact can be stored: {problem}" if problem else None

    def take(self, digest: str, name: str, path: Path) -> None:
        """Take in a file whose bytes lie at path; after manifest.json, verify the artifact and complete it.

        A file of an artifact that is already complete is dropped: its name says what it holds. Raises
        ArtifactRefusedError where the artifact is not what its manifest and digest say,
        ArtifactsUnavailableError.
        """
        with _failing():
            if self._objects.holds(f"{digest}/{MANIFEST}"):
                self._use(digest)
                return self._forget(digest)
            self._use(digest)
            if name != MANIFEST:
                return self._objects.upload(path, f"{_INCOMING}/{digest}/{name}")
            with tempfile.TemporaryDirectory() as staged:
                self._complete(digest, path, Path(staged))
            return self._forget(digest)

    def _complete(self, digest: str, manifest: Path, folder: Path) -> None:
        shutil.copyfile(manifest, folder / MANIFEST)
        try:
            names = load(folder).manifest.files
            for name in names:
                self._objects.download(f"{_INCOMING}/{digest}/{name}", folder / name)
            verify(folder, digest)
        except (ArtifactError, FileNotFoundError) as error:
            if self._objects.holds(f"{digest}/{MANIFEST}"):
                return  # another server was quicker, and took the files that it had
            raise ArtifactRefusedError(f"the artifact is not complete: {error}") from error
        for name in names:
            self._objects.upload(folder / name, f"{digest}/{name}")
        try:
            self._objects.write(f"{digest}/{MANIFEST}", manifest.read_bytes(), once=True)
        except FileExistsError:
            return  # another server was quicker with the same bytes

    def _forget(self, digest: str) -> None:
        for name in self._objects.names(f"{_INCOMING}/{digest}"):
            self._objects.delete(name)

    def _require_complete(self, digest: str) -> None:
        if not self._objects.holds(f"{digest}/{MANIFEST}"):
            self._objects.require_there()
            raise ArtifactMissingError(f"no artifact {digest}")

    def _use(self, digest: str) -> None:
        self._objects.write(f"{_USED}/{digest}", b"")

    def _unused(self, digest: str, before: datetime) -> bool:
        # Looked at again: since the listing began, somebody may have begun to propose it.
        try:
            return self._objects.modified(f"{_USED}/{digest}") < before
        except FileNotFoundError:
            return True

    def _pieces(self, name: str, size: int) -> Iterator[bytes]:
        for start in range(0, size, PIECE_BYTES):
            with _failing():
                piece = self._objects.read(name, start, min(start + PIECE_BYTES, size))
            yield piece


class BucketUpload:
    """One file on its way in: write its bytes, then commit; leaving without a commit drops it."""

    def __init__(self, bucket: ArtifactBucket, digest: str, name: str, max_bytes: int) -> None:
        self._bucket, self._digest, self._name = bucket, digest, name
        self._max_bytes = max_bytes
        self._stream = tempfile.NamedTemporaryFile()  # noqa: SIM115 - closed on leaving this context
        self._written = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()

    def write(self, chunk: bytes) -> None:
        """Take the next bytes; raises ArtifactTooLargeError."""
        self._written += len(chunk)
        require_room(self._written, self._max_bytes)
        self._stream.write(chunk)

    def commit(self) -> None:
        """Store the file; raises what ArtifactBucket.take raises."""
        self._stream.flush()
        self._bucket.take(self._digest, self._name, Path(self._stream.name))


def _by_digest(found: list[Found]) -> dict[str, list[Found]]:
    objects = defaultdict(list)
    for one in found:
        for part in one.name.split("/")[:2]:
            if is_digest(part):
                objects[part].append(one)
    return objects


def _all_older(objects: list[Found], before: datetime) -> bool:
    return max(one.modified for one in objects) < before


@contextmanager
def _failing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ArtifactsUnavailableError(f"the store of artifacts: {error}") from error

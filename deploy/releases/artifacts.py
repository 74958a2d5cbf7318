"""The store of release artifacts, a folder or an object store: complete and verified, or not there.

    DIGEST/NAME             a file of an artifact, which is there as a whole once DIGEST/manifest.json is
    .incoming/DIGEST/NAME   a file on its way in, whichever of the servers took it
    .used/DIGEST            when somebody last put the artifact, or looked at its evidence

A folder has the layout of an object store, so the one is copied into the other as it is. There is no lock:
only what was verified against DIGEST is written below it, so any number of servers write the same there, the
manifest last. Only the signature may become another. What is collected loses its manifest first.
"""

import hashlib
import re
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Container, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import count
from mmap import ACCESS_READ, mmap
from pathlib import Path
from threading import Lock
from typing import IO

from deploy.releases.evidence import Evidence, EvidenceError
from detector.release.artifact import EVALUATION, FILES, MANIFEST, SIGNATURE, SNAPSHOT, Artifact, load
from detector.release.manifest import ArtifactError, DamagedArtifactError
from detector.release.signature import verify_signed
from detector.release.tensors import OPERATORS
from ingest.durable import ASIDE, make_folder
from memory.crops.object_store import ObjectInfo, ObjectStore, local_folder
from memory.purge import emptied_among, purged_sources
from memory.store import Store
from updater.candidate.snapshot import Snapshot, SnapshotError
from updater.limited_session import GraphError, try_release

KEPT_S = 24 * 3600
"""Seconds that an unfinished upload, or an artifact that no release names, is kept after its last use."""

_PIECE_BYTES = 2**22
_DIGEST = re.compile(r"[0-9a-f]{64}")
_INCOMING, _USED, _CLOCK = ".incoming", ".used", ".clock"
_NAMES = FILES | {SIGNATURE}

_NAMED = {"operator": OPERATORS | {"EyeLike", "If"}, "domain": ("", "ai.onnx")}
"""What the updater's exporter writes is listed too; both branches of an If are read."""
_INSIDE: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph", 20: "a training graph", 25: "a function"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {4: "operator", 5: "attribute", 7: "domain"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "a weight in another file"},
}
"""What may run, or names a file, by its number in each message of onnx.proto."""


class StoreError(Exception):
    """The store does not do this; fatal for the request."""


class ArtifactMissingError(StoreError):
    """No complete artifact of this digest, or no such file in it."""


class ArtifactRefusedError(StoreError):
    """A digest or file name that is none, or bytes that are not those of the manifest."""


class ArtifactTooLargeError(StoreError):
    """A file over the limit."""


class ArtifactsUnavailableError(StoreError):
    """Where the artifacts lie cannot be read or written now; retryable."""


@dataclass(frozen=True)
class Stored:
    """One file of an artifact: how many bytes it has, and its pieces in order."""

    size: int
    pieces: Iterator[bytes]


class ArtifactStore:
    """Artifacts below one folder or URL, for any number of threads, processes and hosts."""

    def __init__(self, url: str, max_file_bytes: int, signers: Path | None = None) -> None:
        """Open or create a folder; raises OSError. A bucket that is away for a while stops no server.

        signers: as of detector.release.signature.verify_signed, for every artifact that is taken or shown.
        """
        self._signers, self._trial = signers, Lock()
        self._objects = ObjectStore(url)
        self._folder = local_folder(url)
        self._max_file_bytes = max_file_bytes
        if self._folder is not None:
            make_folder(self._folder)

    def read(self, digest: str, name: str) -> Stored:
        """One file of a complete artifact, in pieces.

        Raises ArtifactRefusedError, ArtifactMissingError, ArtifactsUnavailableError.
        """
        _check_name(digest, name)
        with _failing():
            self._require_complete(digest)
            try:
                size = self._objects.size(f"{digest}/{name}")
            except FileNotFoundError as error:
                raise ArtifactMissingError(f"no file {name} in artifact {digest}") from error
        return Stored(size, self._pieces(f"{digest}/{name}", size))

    def evidence(self, digest: str) -> Evidence:
        """Read every byte of an artifact anew and return its evidence. It is kept for KEPT_S from here on.

        Raises ArtifactRefusedError where a file is not what the manifest says or no signer signed it,
        ArtifactMissingError, ArtifactsUnavailableError.
        """
        with tempfile.TemporaryDirectory() as folder:
            artifact = self.fetch(digest, Path(folder))
            evaluation = (artifact.folder / EVALUATION).read_bytes()
        return Evidence(
            digest=artifact.digest,
            evaluation_digest=hashlib.sha256(evaluation).hexdigest(),
            parent=artifact.manifest.parent,
            classes=artifact.manifest.classes,
            evaluation=evaluation,
            snapshot=artifact.manifest.files.get(SNAPSHOT),
        )

    def fetch(self, digest: str, folder: Path) -> Artifact:
        """Bring an artifact into an empty folder and verify it. Raises as `evidence` does."""
        _check_name(digest, MANIFEST)
        with _failing():
            self._require_complete(digest)
            self._use(digest)
            try:
                self._bring_all(digest, folder)
                return _verify_trusted(folder, None, self._signers)
            except ArtifactError as error:
                self._require_complete(digest)
                raise ArtifactRefusedError(f"artifact {digest} is damaged or not trusted: {error}") from error

    @contextmanager
    def upload(self, digest: str, name: str) -> Iterator["Upload"]:
        """Receive one file: write its bytes, then commit; leaving without a commit drops it.

        Raises ArtifactRefusedError.
        """
        _check_name(digest, name)
        with tempfile.NamedTemporaryFile() as stream:
            yield Upload(self, digest, name, stream, self._max_file_bytes)

    def collect(self, named: Container[str]) -> list[str]:
        """Remove files that were not used for KEPT_S: unfinished uploads, and artifacts that are not `named`.

        named: the digests of every release in the ledger. Ages are by the store's own clock. An artifact
        that is named in the very moment of its removal is refused where it is used, and can be put again.
        Returns the digests of what was removed. Raises ArtifactsUnavailableError.
        """
        with _failing():
            # Some stores make a bucket that they lack of the first write: a mistyped URL would pass.
            self._require_there()
            self._objects.write(_CLOCK, b"")
            before = self._objects.modified_at(_CLOCK) - timedelta(seconds=KEPT_S)
            self._objects.abort_uploads(before)
            removed = []
            for digest, objects in _by_digest(self._objects.list_objects()).items():
                if max(item.modified for item in objects) >= before:
                    continue
                staged = [item for item in objects if item.name.startswith(_INCOMING)]
                unnamed = digest not in named and self._is_unused(digest, before)
                going = objects if unnamed else staged
                # Without its manifest, what is left of an artifact is not there.
                for item in sorted(going, key=lambda item: item.name != f"{digest}/{MANIFEST}"):
                    self._objects.delete(item.name)
                if going:
                    removed.append(digest)
        return removed

    def hindrance(self) -> str | None:
        """Give in one line why no artifact can be read or stored now; None: they can."""
        problem = self._missing_folder() or self._objects.hindrance()
        return f"no artifact can be stored: {problem}" if problem else None

    def take(self, digest: str, name: str, path: Path) -> None:
        """Take in a file whose bytes lie at path; after manifest.json, verify the artifact and complete it.

        A file of an artifact that is complete is dropped, but for a first signature, or one by a signer.
        Raises ArtifactRefusedError where the artifact is not what its digest says or no signer signed it,
        ArtifactsUnavailableError.
        """
        with _failing():
            self._require_folder()
            complete = self._objects.holds(f"{digest}/{MANIFEST}")
            self._use(digest)
            if not complete and name != MANIFEST:
                return self._objects.upload(path, f"{_INCOMING}/{digest}/{name}")
            if not complete:
                self._complete(digest, path)
            elif name == SIGNATURE and (self._signers or not self._objects.holds(f"{digest}/{SIGNATURE}")):
                self._sign_again(digest, path)
            for staged in self._objects.names(f"{_INCOMING}/{digest}"):
                # What another server is still taking in it could not name; collect removes what it leaves.
                if not staged.endswith(ASIDE):
                    self._objects.delete(staged)

    def _complete(self, digest: str, manifest: Path) -> None:
        with tempfile.TemporaryDirectory() as staged:
            folder = Path(staged)
            shutil.copyfile(manifest, folder / MANIFEST)
            try:
                self._bring_all(f"{_INCOMING}/{digest}", folder)
                artifact = _verify_trusted(folder, digest, self._signers)
            except ArtifactError as error:
                if self._objects.holds(f"{digest}/{MANIFEST}"):
                    return  # another server was quicker, and took the files that it had
                raise ArtifactRefusedError(f"the artifact is not complete: {error}") from error
            try:
                with self._trial:
                    try_release(artifact)
            except GraphError as error:
                raise ArtifactRefusedError(f"the release fails its trial: {error}") from error
            for name in (*artifact.manifest.files, SIGNATURE, MANIFEST):
                if (folder / name).is_file():
                    self._objects.upload(folder / name, f"{digest}/{name}")

    def _sign_again(self, digest: str, signature: Path) -> None:
        with tempfile.TemporaryDirectory() as brought:
            folder = Path(brought)
            try:
                self._bring_all(digest, folder)
                shutil.copyfile(signature, folder / SIGNATURE)
                verify_signed(folder, digest, self._signers)
            except ArtifactError as error:
                raise ArtifactRefusedError(f"the signature is refused: {error}") from error
        self._objects.upload(signature, f"{digest}/{SIGNATURE}")

    def _bring_all(self, place: str, folder: Path) -> None:
        if not (folder / MANIFEST).exists():
            self._bring(place, MANIFEST, folder)
        for name in (*load(folder).manifest.files, SIGNATURE):
            self._bring(place, name, folder)

    def _bring(self, place: str, name: str, folder: Path) -> None:
        with suppress(FileNotFoundError):  # which the verification that follows names
            self._objects.download(f"{place}/{name}", folder / name)

    def _require_complete(self, digest: str) -> None:
        if not self._objects.holds(f"{digest}/{MANIFEST}"):
            self._require_there()
            raise ArtifactMissingError(f"no artifact {digest}")

    def _require_there(self) -> None:
        self._require_folder()
        self._objects.require_there()

    def _require_folder(self) -> None:
        # A write would make it anew, and what it held would be lost in silence.
        if gone := self._missing_folder():
            raise OSError(gone)

    def _missing_folder(self) -> str | None:
        if self._folder is None or self._folder.is_dir():
            return None
        return f"the folder {self._folder} is gone"

    def _use(self, digest: str) -> None:
        self._objects.write(f"{_USED}/{digest}", b"")

    def _is_unused(self, digest: str, before: datetime) -> bool:
        # Looked at again: since the listing began, somebody may have begun to propose it.
        try:
            return self._objects.modified_at(f"{_USED}/{digest}") < before
        except FileNotFoundError:
            return True

    def _pieces(self, name: str, size: int) -> Iterator[bytes]:
        for start in range(0, size, _PIECE_BYTES):
            with _failing():
                piece = self._objects.read(name, start, min(start + _PIECE_BYTES, size))
            yield piece


class Upload:
    """One file on its way in."""

    def __init__(self, store: ArtifactStore, digest: str, name: str, stream: IO[bytes], limit: int) -> None:
        self._store, self._digest, self._name = store, digest, name
        self._stream, self._max_bytes = stream, limit

    def write(self, chunk: bytes) -> None:
        """Take the next bytes; raises ArtifactTooLargeError."""
        if self._stream.tell() + len(chunk) > self._max_bytes:
            raise ArtifactTooLargeError(f"a file has at most {self._max_bytes} bytes")
        self._stream.write(chunk)

    def commit(self) -> None:
        """Store the file; raises the errors of ArtifactStore.take."""
        self._stream.flush()
        self._store.take(self._digest, self._name, Path(self._stream.name))


def _check_name(digest: str, name: str) -> None:
    if not _DIGEST.fullmatch(digest):
        raise ArtifactRefusedError("a digest is 64 hexadecimal digits in lower case")
    if name not in _NAMES:
        raise ArtifactRefusedError(f"an artifact has no such file; it may have {', '.join(sorted(_NAMES))}")


def _verify_trusted(folder: Path, digest: str | None, signers: Path | None) -> Artifact:
    """Verify a folder, and that its graphs have listed operators alone. Raises ArtifactError."""
    artifact = verify_signed(folder, digest, signers)
    for name in (graph.model for graph in artifact.graphs):
        try:
            with (folder / name).open("rb") as file:
                model = memoryview(mmap(file.fileno(), 0, access=ACCESS_READ))
            others = sorted(set(_not_listed(model, "model", count())))
        except (ValueError, IndexError, KeyError, RecursionError) as error:
            raise DamagedArtifactError(f"{name} is no ONNX file ({error})") from error
        if others:
            raise DamagedArtifactError(f"{name} has {', '.join(others[:8])}, which no release may have")
    return artifact


def _not_listed(message: memoryview, kind: str, parts: Iterator[int]) -> Iterator[str]:
    """Yield fields of a protobuf message that may not run, at any depth. Raises ValueError and such."""
    at = 0
    while at < len(message):
        key, at = _number(message, at)
        if next(parts) > 2_000_000:
            raise ValueError("it has too many parts")
        number, at = _number(message, at) if key & 7 in (0, 2) else ({1: 8, 5: 4}[key & 7], at)
        size = number if key & 7 else 0
        value, at, inside = message[at : at + size], at + size, _INSIDE[kind].get(key >> 3, "")
        if inside in _INSIDE:
            yield from _not_listed(value, inside, parts)
        elif inside:
            name = bytes(value[:100]).decode()
            if inside not in _NAMED or name not in _NAMED[inside]:
                yield f"{inside} {name}" if inside in _NAMED else inside


def _number(message: memoryview, at: int) -> tuple[int, int]:
    value = 0
    for place in range(10):
        value |= (message[at + place] & 127) << 7 * place
        if message[at + place] < 128:
            return value, at + place + 1
    raise ValueError("it has a number of too many bytes")


def _by_digest(infos: list[ObjectInfo]) -> dict[str, list[ObjectInfo]]:
    objects = defaultdict(list)
    for item in infos:
        for part in item.name.split("/")[:2]:
            if _DIGEST.fullmatch(part):
                objects[part].append(item)
    return objects


@contextmanager
def _failing() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ArtifactsUnavailableError(f"the store of artifacts: {error}") from error


def find_evidence(memory: Store, artifacts: ArtifactStore, digest: str) -> Evidence:
    """What lies in the store now, which asks the memory what was purged once somebody wants to know.

    Raises StoreError; its `purged` also EvidenceError and StoreUnavailableError.
    """
    evidence = artifacts.evidence(digest)

    def purged_count() -> int:
        with memory.read() as connection:
            sources = purged_sources(connection)
            if evidence.snapshot is None or not sources:
                return 0
        try:
            rows = list(Snapshot(b"".join(artifacts.read(digest, SNAPSHOT).pieces)))
        except SnapshotError as error:
            raise EvidenceError(f"release {digest[:12]}: {error}") from error
        with memory.read() as connection:
            return emptied_among(connection, [row.exemplar for row in rows if row.source in sources])

    return replace(evidence, purged=purged_count)

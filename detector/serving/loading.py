"""Bringing a release into this worker's TorchServe, and taking out unused ones. Blocking.

On its way a release is packed, as the very bytes that were verified. What each worker holds lies in a file.
"""

import fcntl
import hashlib
import json
import re
import shutil
import uuid
import zipfile
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import structlog

from detector.records import Rollout
from detector.release.artifact import FILES, MANIFEST, Artifact, version_of
from detector.release.manifest import DamagedArtifactError
from detector.serving.rollout_source import RolloutClient, fetch
from detector.serving.torchserve import MODEL_NAME, FailedError, StartError, TorchServe, mar_name
from detector.settings import DetectorSettings
from ingest.durable import ASIDE, file_aside

_ENTRY = re.compile(rf"([0-9a-f]{{64}})|\.([0-9a-f]{{64}})\..*{re.escape(ASIDE)}")
"""A name in the cache: an artifact's, or that of one that a crash left half fetched."""

_LOCK = "lock"

_SHIM_NAME = "forgewatch_service.py"
_SHIM = '''"""What TorchServe loads. It asks for a file that defines exactly one class."""
from detector.handler import Handler

class Service(Handler):
    """Forgewatch."""
'''
_EPOCH = (1980, 1, 1, 0, 0, 0)
_CHUNK_BYTES = 2**20

log = structlog.get_logger()


class Holdings:
    """One worker's entry in a model store: which releases it may be using, so that no other removes them.

    One worker beside one TorchServe is the rule, but nothing keeps two from sharing both. Each writes down
    what it holds, in a file that it keeps locked: the kernel opens the lock however the process ends. Close
    the entry, or leave it to the end of the process.
    """

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
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    path.unlink(missing_ok=True)  # its process ended
                except BlockingIOError:
                    held |= set(json.load(file))
        return held

    @contextmanager
    def _alone(self) -> Iterator[None]:
        with (self._folder / _LOCK).open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


@dataclass(frozen=True)
class DesiredState:
    """How TorchServe and the store look once nothing is to be done.

    default is the version that answers a request which names none; loaded are the digests whose versions
    TorchServe has, cached (loaded among them) those whose artifacts lie in the cache; kept is the rollout
    to serve after a restart, None to leave it as it is.
    """

    default: str
    loaded: frozenset[str]
    cached: frozenset[str]
    kept: Rollout | None


@dataclass(frozen=True)
class Loader:
    """The places that a release passes on its way: the cache, the model store and TorchServe.

    Every method raises TorchServeError and OSError.
    """

    settings: DetectorSettings
    torchserve: TorchServe
    holdings: Holdings
    wanted: RolloutClient

    @property
    def cache(self) -> Path:
        """Where fetched artifacts lie, each in a folder named by its digest."""
        return self.settings.model_store_dir / "artifacts"

    def bring(self, digest: str, held: Collection[str]) -> Artifact:
        """Have a version of TorchServe ready that scores as the artifact's probe says it must.

        held are the digests that this worker needs beside it. Raises FetchError and ArtifactError too.
        """
        self.holdings.hold({*held, digest})
        artifact = fetch(digest, self.cache, self.settings)
        if not self.torchserve.versions().get(artifact.version):
            pack(artifact, self.settings.model_store_dir)
            self.torchserve.register(artifact)
        try:
            differences = self.torchserve.probe(artifact)
        except FailedError as error:
            raise StartError(f"it fails at its probe: {error}") from error
        worst = max(differences.values(), default=0.0)
        log.info("release ready", release=artifact.version, worst_difference=worst)
        return artifact

    def reconcile(self, end: DesiredState) -> None:
        """Bring TorchServe, the model store and the cache to this end. Doing it twice is the same as once.

        What another worker holds stays. Versions that an earlier process left are found, too.
        """
        if end.kept is not None:
            self.wanted.keep(end.kept)
        self.torchserve.set_default(end.default)
        with self.holdings.hold_alone(end.loaded | end.cached) as held:
            uncached = held - end.cached
            loaded = end.loaded | uncached
            versions = {version_of(digest) for digest in loaded}
            for version in self.torchserve.versions():
                if version not in versions:
                    self.torchserve.unregister(version)
                    log.info("release unloaded", release=version)
            archives = {mar_name(digest) for digest in loaded}
            for path in self.settings.model_store_dir.glob(mar_name("*")):
                if path.name not in archives:
                    path.unlink(missing_ok=True)
            for path in self.cache.iterdir() if self.cache.is_dir() else ():
                named = _ENTRY.fullmatch(path.name)
                if named and (named[1] or named[2]) not in held:
                    shutil.rmtree(path)


def pack(artifact: Artifact, store: Path) -> Path:
    """Write the artifact's archive into the model store, over one that lies there; return its path.

    It has the same bytes every time. What is packed is hashed while it is copied, so no byte comes between
    the check and the archive. Nothing is compressed: weights do not shrink, and TorchServe unpacks it on each
    registration.
    Raises DamagedArtifactError where a byte is not the digest's, and OSError.
    """
    target = store / mar_name(artifact.digest)
    digests = {**artifact.manifest.files, MANIFEST: artifact.digest}
    if wrong := sorted(digests.keys() - FILES):
        raise DamagedArtifactError(f"{artifact.folder}: no artifact has files of these names: {wrong}")
    with file_aside(target) as aside:
        with zipfile.ZipFile(aside, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr(_entry("MAR-INF/MANIFEST.json"), _torchserve_manifest(artifact.version))
            archive.writestr(_entry(_SHIM_NAME), _SHIM)
            for name in sorted(digests):
                _copy(artifact.folder / name, archive, digests[name])
        aside.chmod(0o644)  # TorchServe may run as another user
    return target


def _copy(path: Path, archive: zipfile.ZipFile, digest: str) -> None:
    entry, hashed = _entry(path.name), hashlib.sha256()
    entry.file_size = path.stat().st_size  # by which zipfile chooses the wider format
    with path.open("rb") as source, archive.open(entry, "w") as target:
        while chunk := source.read(_CHUNK_BYTES):
            hashed.update(chunk)
            target.write(chunk)
    if (actual := hashed.hexdigest()) != digest:
        raise DamagedArtifactError(f"{path} has SHA-256 {actual}, the release says {digest}")


def _entry(name: str) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _EPOCH)
    entry.external_attr = 0o100644 << 16
    entry.create_system = 3
    return entry


def _torchserve_manifest(version: str) -> bytes:
    fields = {
        "createdOn": "01/01/1980 00:00:00",
        "runtime": "python",
        "model": {"modelName": MODEL_NAME, "handler": _SHIM_NAME, "modelVersion": version},
        "archiverVersion": "0.12.0",
    }
    return json.dumps(fields, indent=1).encode()

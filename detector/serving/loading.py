"""Bringing a release into this worker's TorchServe, and taking out what nobody wants. Blocking; no state."""

import re
import shutil
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import structlog

from detector.records import Rollout
from detector.release.artifact import Artifact, version_of
from detector.serving import mar
from detector.serving.fetch import fetch
from detector.serving.holdings import Holdings
from detector.serving.rollout_source import Wanted
from detector.serving.torchserve import TorchServe
from detector.settings import DetectorSettings
from ingest.durable import ASIDE

_ENTRY = re.compile(rf"([0-9a-f]{{64}})|\.([0-9a-f]{{64}})\..*{re.escape(ASIDE)}")
"""A name in the cache: an artifact's, or that of one that a crash left half fetched."""

log = structlog.get_logger()


@dataclass(frozen=True)
class Settled:
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
    wanted: Wanted

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
        known = self.torchserve.versions().get(artifact.version)
        if known is None or not known.ready:
            mar.pack(artifact, self.settings.model_store_dir)
            self.torchserve.register(artifact)
        differences = self.torchserve.probe(artifact)
        worst = max(differences.values(), default=0.0)
        log.info("release ready", release=artifact.version, worst_difference=worst)
        return artifact

    def settle(self, end: Settled) -> None:
        """Bring TorchServe, the model store and the cache to this end. Doing it twice is the same as once.

        What another worker holds stays. Versions that an earlier process left are found, too.
        """
        if end.kept is not None:
            self.wanted.keep(end.kept)
        self.torchserve.set_default(end.default)
        with self.holdings.hold_alone(end.loaded | end.cached) as held:
            others = held - end.cached
            loaded = end.loaded | others
            versions = {version_of(digest) for digest in loaded}
            for version in self.torchserve.versions():
                if version not in versions:
                    self.torchserve.unregister(version)
                    log.info("release unloaded", release=version)
            archives = {mar.mar_name(digest) for digest in loaded}
            for path in self.settings.model_store_dir.glob(mar.mar_name("*")):
                if path.name not in archives:
                    path.unlink(missing_ok=True)
            for path in self.cache.iterdir() if self.cache.is_dir() else ():
                named = _ENTRY.fullmatch(path.name)
                if named and (named[1] or named[2]) not in held:
                    shutil.rmtree(path)

"""Bringing this worker's TorchServe to the wanted release, while the one before goes on scoring."""

import time
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Self

import structlog

from detector import mar, metrics
from detector.artifact import Artifact, ArtifactError, version_of
from detector.fetch import FetchError, fetch
from detector.releases import ReleaseFollower
from detector.routing import Route
from detector.settings import DetectorSettings
from detector.torchserve import TorchServe, TorchServeError, TorchServeUnavailableError

log = structlog.get_logger()


class Serving:
    """What scores now, and the idempotent step towards what deploy wants.

    One step at a time is under way in a thread of its own: fetch, verify, pack, register, wait for a
    ready worker, probe. Only then does `live` change, between two batches, so no request of the
    worker is ever in flight to the version that it leaves. The version before stays loaded for the
    rollback window, and a rollback within it is only a change of route.
    """

    def __init__(self, settings: DetectorSettings, torchserve: TorchServe, follower: ReleaseFollower) -> None:
        self.live: Artifact | None = None
        self._settings = settings
        self._torchserve = torchserve
        self._follower = follower
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rollout")
        self._coming: tuple[str, Future[Artifact]] | None = None
        self._not_before = 0.0
        self._refused: str | None = None
        self._leaving: dict[str, float] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown(cancel_futures=True)

    @property
    def route(self) -> Route | None:
        """Which release scores which item; None before there is one."""
        return None if self.live is None else Route(self.live)

    def tick(self) -> None:
        """Read what is wanted and take the next step towards it; returns at once."""
        wanted = self._follower.poll()
        if self._coming is not None and self._coming[1].done():
            self._arrive(*self._coming)
            self._coming = None
        free = self._coming is None and time.monotonic() >= self._not_before
        current = None if self.live is None else self.live.digest
        if wanted is not None and free and wanted.stable not in (current, self._refused):
            self._coming = wanted.stable, self._thread.submit(self._bring, wanted.stable)
        self._retire()

    def heal(self, artifact: Artifact) -> None:
        """Register a release again that TorchServe may have lost, as after a restart of its own."""
        if self._coming is None and time.monotonic() >= self._not_before:
            self._coming = artifact.digest, self._thread.submit(self._bring, artifact.digest)

    def _bring(self, digest: str) -> Artifact:
        store = self._settings.model_store_dir
        store.mkdir(parents=True, exist_ok=True)
        artifact = fetch(digest, store / "artifacts", self._settings)
        mar.pack(artifact, store)
        self._torchserve.register(artifact)
        differences = self._torchserve.probe(artifact)
        self._torchserve.set_default(artifact.version)
        log.info(
            "release ready", release=artifact.version, worst_difference=max(differences.values(), default=0.0)
        )
        return artifact

    def _arrive(self, digest: str, coming: Future[Artifact]) -> None:
        try:
            artifact = coming.result()
        except (FetchError, TorchServeUnavailableError) as error:
            metrics.SWAPS.labels("retried").inc()
            self._not_before = time.monotonic() + self._settings.retry_interval_s
            log.warning("release not ready yet, trying again", release=version_of(digest), error=str(error))
            return
        except (ArtifactError, TorchServeError) as error:
            # What deploy wants cannot be served: the release before goes on, and the operator must see it.
            metrics.SWAPS.labels("refused").inc()
            self._refused = digest
            log.error("release refused", release=version_of(digest), error=str(error))
            return
        if self.live is not None and self.live.digest != digest:
            self._leaving[self.live.digest] = time.monotonic() + self._settings.rollback_window_s
            metrics.SERVING.labels(self.live.version).set(0)
        self._leaving.pop(digest, None)
        self.live = artifact
        metrics.SWAPS.labels("served").inc()
        metrics.SERVING.labels(artifact.version).set(1)
        log.info("release live", release=artifact.version)

    def _retire(self) -> None:
        """Unload what was left longer ago than the rollback window."""
        for digest in [digest for digest, until in self._leaving.items() if time.monotonic() > until]:
            version = version_of(digest)
            try:
                self._torchserve.unregister(version)
            except TorchServeError as error:
                log.warning("old release not unloaded yet", release=version, error=str(error))
                continue
            del self._leaving[digest]
            metrics.forget_release(version)
            log.info("release unloaded", release=version)

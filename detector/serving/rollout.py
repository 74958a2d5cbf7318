"""The releases that score now, and the idempotent steps from there to the desired ones."""

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import structlog

from detector import metrics
from detector.records import Rollout, in_share
from detector.release.artifact import Artifact, version_of
from detector.serving.loading import DesiredState, Loader
from detector.serving.rollout_source import (
    LONGEST_PAUSE_S,
    REFUSED_PAUSE_S,
    FetchError,
    Pause,
    ReleaseFollower,
    RolloutClient,
    discard,
)
from detector.serving.torchserve import ProbeError, StartError, TorchServeError
from detector.settings import DetectorSettings

_MOST_STARTS = 3
"""After so many starts that failed, whatever else failed between, it is the release that does not start."""
_MOST_BLAMED, _BLAMED_WITHIN_S = 3, 3600.0
"""After so many items that it alone fails at, a release is taken out."""


@dataclass(frozen=True)
class Route:
    """The releases that score now: the stable one every item, the canary a share of them too.

    refused: digest of a canary that cannot be brought, and why; then shared items say so in its place.
    trial: as Rollout has it. missing: digest of a canary that is not loaded yet.
    """

    stable: Artifact
    canary: Artifact | None = None
    canary_share: float = 0.0
    shared_share: float = 0.0
    refused: tuple[str, str] | None = None
    trial: int | None = None
    missing: str | None = None

    @property
    def challenger(self) -> str | None:
        """Digest of the canary, or of the one that there should be."""
        refused = self.refused[0] if self.refused else self.missing
        return self.canary.digest if self.canary else refused

    def shares(self, item_id: str) -> bool:
        """Whether both releases are to score the item of this id (a verdict's `id`)."""
        return self.challenger is not None and in_share(item_id, self.shared_share)

    def canary_answers(self, item_id: str) -> bool:
        """Whether the canary's word on the item goes out, if it has one."""
        return in_share(item_id, self.canary_share)

    @property
    def releases(self) -> dict[str, Artifact]:
        """The releases that this route asks, by digest."""
        both = (self.stable,) if self.canary is None else (self.stable, self.canary)
        return {artifact.digest: artifact for artifact in both}


log = structlog.get_logger()

_MOST_LEAVING = 2
"""Releases that stay loaded for a rollback, the last stable one and its canary, however fast they follow."""

_Step = tuple["Future[Any]", Callable[["Future[Any]"], None]]


class Serving:
    """The releases that score, and one step at a time, in a thread of its own, towards those that should.

    A step asks deploy what to serve, brings a release (fetch, verify, pack, register, probe), or settles:
    takes out what nobody wants. `route` changes only in `tick`, between two batches, and nothing that is
    `in_use` is unloaded, so no request of the worker is ever in flight to a version that is gone. What
    cannot be served is tried again and again, while the last good release goes on scoring.
    """

    def __init__(
        self, settings: DetectorSettings, loader: Loader, follower: ReleaseFollower, wanted: RolloutClient
    ) -> None:
        self.route: Route | None = None
        self.in_use: Collection[str] = ()
        self._settings = settings
        self._loader = loader
        self._follower = follower
        self._wanted = wanted
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="rollout")
        self._step: _Step | None = None
        self._ready: dict[str, Artifact] = {}
        self._lost: deque[str] = deque()
        self._leaving: dict[str, float] = {}
        self._pauses: defaultdict[str, Pause] = defaultdict(Pause)
        self._settled: DesiredState | None = None
        self._settling = Pause()
        self._unserved: dict[str, str] = {}
        self._faults: dict[str, str] = {}
        self._starts: Counter[str] = Counter()
        self._blamed: deque[tuple[str, str]] = deque()
        self._failures: defaultdict[str, deque[float]] = defaultdict(partial(deque, maxlen=_MOST_BLAMED))
        self._out: set[str] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)

    @property
    def rollout(self) -> Rollout | None:
        """The desired rollout, by deploy's last word."""
        return self._wanted.rollout

    def tick(self) -> None:
        """Read the desired state and take the next step towards it; returns at once."""
        while self._lost:
            self._ready.pop(self._lost.popleft(), None)
        while self._blamed:
            self._count(*self._blamed.popleft())
        newest = self._follower.poll()
        if self._step is not None and self._step[0].done():
            (future, done), self._step = self._step, None
            done(future)
        if self._wanted.rollout is not None:
            self._out &= {self._wanted.rollout.stable, self._wanted.rollout.canary}
            self._reroute(self._wanted.rollout)
            self._export_metrics(self._wanted.rollout)
        if self._step is None:
            self._step = self._next(newest)

    def request_reload(self, artifact: Artifact) -> None:
        """Have the next tick register a release again that TorchServe may have lost; any thread may ask."""
        self._lost.append(artifact.digest)

    def blame(self, version: str, why: str) -> None:
        """A release fails at an item, though it answers its probe; any thread may say so."""
        self._blamed.append((version, why))

    def _count(self, version: str, why: str) -> None:
        """Take a release out that fails at several items: another scores in its place, where there is one."""
        digest = next((d for d in self.route.releases if version_of(d) == version), "") if self.route else ""
        failures, now = self._failures[digest], time.monotonic()
        failures.append(now)
        if digest and len(failures) == _MOST_BLAMED and failures[0] > now - _BLAMED_WITHIN_S:
            self._out.add(digest)
            self._faults[digest] = f"it fails at {_MOST_BLAMED} items: {why}"
            log.error("release taken out", release=version, error=self._faults[digest])

    def _next(self, newest: Rollout | None) -> _Step | None:
        """Begin the next step, if there is one: deploy's word first, then what scores, then order."""
        if self._wanted.due(newest):
            return self._thread.submit(self._wanted.ask), partial(self._wanted.on_reply, newest)
        for digest in self._lacking():
            if self._pauses[digest].due:
                bring = self._thread.submit(self._loader.bring, digest, self._needed_digests())
                return bring, partial(self._on_loaded, digest)
        if self.route is not None and self._settling.due and (end := self._end(self.route)) != self._settled:
            return self._thread.submit(self._loader.reconcile, end), partial(self._on_reconciled, end)
        return None

    def _lacking(self) -> list[str]:
        """Digests of releases to load, the most needed first."""
        needed = [] if self.route is None else [*self.route.releases]
        if (rollout := self._wanted.rollout) is not None:
            needed.append(rollout.stable)
            without = self.route is None and self._pauses[rollout.stable].failures
            if without or rollout.stable in self._out:
                needed += self._fallbacks(rollout)
            if rollout.canary is not None:
                needed.append(rollout.canary)
        out = self._out if self.route is None else self._out - self.route.releases.keys()
        return [digest for digest in dict.fromkeys(needed) if digest not in {*self._ready, *out}]

    def _fallbacks(self, rollout: Rollout) -> list[str]:
        """The last good releases, which may score where the stable one is unavailable or was taken out."""
        kept = self._wanted.kept
        good = (kept.stable if kept else None, rollout.previous)
        return [digest for digest in good if digest is not None and digest not in self._out]

    def _on_loaded(self, digest: str, coming: "Future[Artifact]") -> None:
        """Take in a release that was brought, or see to it that it is tried again."""
        pause, release = self._pauses[digest], version_of(digest)
        try:
            self._ready[digest] = coming.result()
            pause.rest(0.0)
            self._faults.pop(digest, None)
            self._starts.pop(digest, None)
        except ProbeError as error:
            self._on_refused(digest, error)
        except (FetchError, OSError, TorchServeError) as error:
            metrics.SWAPS.labels("retried").inc()
            fails = isinstance(error, StartError)
            # Each start that fails takes processor time from scoring; without the stable one nothing scores.
            spares = fails and self.route is not None and digest != self.route.stable.digest
            pause.on_failure(REFUSED_PAUSE_S if spares else LONGEST_PAUSE_S)
            self._starts[digest] += fails
            if self._starts[digest] >= _MOST_STARTS:
                self._faults[digest] = f"it does not start: {error}"
                self._settled = None  # TorchServe may have loaded it
            log.warning("release not ready yet, trying again", release=release, error=str(error))
        except Exception as error:
            self._on_refused(digest, error)

    def _on_refused(self, digest: str, error: Exception) -> None:
        """Bytes or scores are wrong: fetch them anew, but not soon. An operator must see it."""
        metrics.SWAPS.labels("refused").inc()
        self._pauses[digest].on_failure(REFUSED_PAUSE_S, long=True)
        with suppress(OSError):
            discard(digest, self._loader.cache)
        self._settled = None  # TorchServe may have loaded it
        problem = f"{type(error).__name__}: {error}"
        self._faults[digest] = problem
        log.error("release refused", release=version_of(digest), error=problem)

    def _reroute(self, rollout: Rollout) -> None:
        """Let what is ready and wanted score; for what no longer does, the rollback window begins."""
        before = {} if self.route is None else self.route.releases
        at_hand = {**before, **self._ready}
        stable = None if rollout.stable in self._out else at_hand.get(rollout.stable)
        if stable is None and (self.route is None or self.route.stable.digest in self._out):
            stable = next((at_hand[name] for name in self._fallbacks(rollout) if name in at_hand), None)
        if stable is None and self.route is not None:
            stable = self.route.stable
        if stable is None:
            return
        canary = at_hand.get(rollout.canary or "") if rollout.canary not in self._out else None
        fault = self._faults.get(rollout.canary or "")
        self.route = Route(
            *(stable, canary, rollout.canary_share, rollout.shared_share),
            refused=None if canary or not fault else (rollout.canary or "", fault),
            trial=rollout.trial,
            missing=None if canary else rollout.canary,
        )
        now, routed = time.monotonic(), self.route.releases
        for digest in before.keys() - routed.keys():
            self._leaving[digest] = now + self._settings.rollback_window_s
            metrics.SERVING.labels(version_of(digest)).set(0)
        for digest in routed.keys() - before.keys():
            self._leaving.pop(digest, None)
            metrics.SWAPS.labels("served").inc()
            metrics.serve_release(version_of(digest), routed[digest].manifest.classes[1:])
            log.info("release live", release=version_of(digest), canary=digest != stable.digest)
        # What comes back is probed anew.
        self._ready = {digest: artifact for digest, artifact in self._ready.items() if digest in routed}
        kept = sorted(self._leaving, key=self._leaving.__getitem__)[-_MOST_LEAVING:]
        for digest in [
            digest for digest, until in self._leaving.items() if now > until or digest not in kept
        ]:
            if digest not in self.in_use:
                del self._leaving[digest]
                metrics.forget_release(version_of(digest))

    def _export_metrics(self, rollout: Rollout) -> None:
        """Show since when a slot does not serve what it should."""
        served = {} if self.route is None else self.route.releases
        for slot, digest in (("stable", rollout.stable), ("canary", rollout.canary)):
            if digest is None or digest in served:
                self._unserved.pop(slot, None)
                metrics.UNSERVED_SINCE.labels(slot).set(0)
            elif self._unserved.get(slot) != digest:
                self._unserved[slot] = digest
                metrics.UNSERVED_SINCE.labels(slot).set_to_current_time()

    def _end(self, route: Route) -> DesiredState:
        """How TorchServe and the store are to look once nothing else is to be done."""
        rollout = self._wanted.rollout
        served = rollout is not None and rollout.stable == route.stable.digest
        return DesiredState(
            default=route.stable.version,
            loaded=frozenset({*route.releases, *self._leaving, *self.in_use}),
            cached=frozenset(self._needed_digests()),
            kept=rollout if served else None,
        )

    def _needed_digests(self) -> set[str]:
        """Digests of the artifacts that this worker may need."""
        digests = {*self._leaving, *self.in_use, *(self.route.releases if self.route else ())}
        if (rollout := self._wanted.rollout) is not None:
            digests |= {rollout.stable, rollout.canary or rollout.stable, *self._fallbacks(rollout)}
        return digests

    def _on_reconciled(self, end: DesiredState, settling: "Future[None]") -> None:
        try:
            settling.result()
        except (TorchServeError, OSError) as error:
            self._settling.on_failure(LONGEST_PAUSE_S)
            log.warning("old releases not removed yet", error=str(error))
        else:
            self._settled = end
            self._settling.rest(0.0)

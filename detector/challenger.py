"""The challenger scores shared items beside the champion, in its own thread, which nobody waits for long.

It changes no answer of the champion. It delays a batch by at most `_PATIENCE` times what the champion took,
or a second where that is more.
"""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

import structlog

from detector import metrics
from detector.batch import Batch, Judged, Opened, RecordMedia, judge
from detector.records import Comparison, ReleaseVerdict
from detector.release.artifact import Artifact
from detector.scoring import leave, score
from detector.second_look import LookBudget, run_second_pass, second_looks
from detector.serving.rollout import Route, Serving
from detector.serving.torchserve import TorchServe, TorchServeUnavailableError
from detector.settings import DetectorSettings
from detector.verdicts import JudgedItem
from ingest.dead_letters import printable
from ingest.sandbox.sandbox import Sandbox
from ingest.settings import IngestSettings


@dataclass(frozen=True)
class SkippedItem:
    """An item that the challenger need not answer, and why, in a few words."""

    why: str


Challenged = Judged | SkippedItem | str
"""What the challenger made of an item, or in one line why it said nothing."""

_SCORES = ("fake_probability", "energy", "unknown_score")


def attach_comparison(champion: Judged, opened: Opened, challenger: Challenged, route: Route) -> Judged:
    """Return a shared item's messages, with the comparison; the champion's where that cannot be.

    Media that cannot be opened or decoded says nothing of a release: it is not compared.
    """
    item = opened.media.item
    if item is None or route.challenger is None or champion.stage in ("envelope", "decode"):
        return champion
    verdict = _release_verdict(challenger, route.challenger)
    spoke = isinstance(challenger, Judged) and verdict.error is None
    answers = spoke and route.canary_answers(champion.record.id)
    comparison = Comparison(
        rollout=route.trial,
        id=champion.record.id,
        source=item.source,
        digest=item.digest,
        declared=any(
            isinstance(judged, Judged) and judged.verdict and judged.verdict.provenance.generation
            for judged in (champion, challenger)
        ),
        champion=_release_verdict(champion, route.stable.digest),
        challenger=verdict,
        answered="challenger" if answers else "champion",
        left_out=challenger.why if isinstance(challenger, SkippedItem) else None,
    )
    word = challenger if answers and isinstance(challenger, Judged) else champion
    return replace(word, comparison=comparison)


def _release_verdict(judged: Challenged, release: str) -> ReleaseVerdict:
    if isinstance(judged, SkippedItem):
        return ReleaseVerdict(release=release)
    if isinstance(judged, str):
        return ReleaseVerdict(release=release, error=printable(judged))
    verdict = judged.verdict
    if verdict is None:
        assert judged.error is not None
        return ReleaseVerdict(release=release, error=printable(judged.error))
    answer = verdict.model_dump(include={"family", *_SCORES})
    # What a file declares is the same for both releases, whatever their pixels say.
    answer |= {"label": verdict.by_pixels} | ({"family": None} if verdict.by_declaration else {})
    return ReleaseVerdict(release=release, model_s=verdict.timings.model_s, **answer)


_T = TypeVar("_T")
_PATIENCE = 3.0
# So long it may take more than the champion: a healthy one is loaded as that is, and asked the same.
_LEAST_PATIENCE_S = 1.0
_EXCUSE_S = 60.0
# When TorchServe is away from the champion too, its restart is no fault of the challenger's: for a minute,
# and once in ten, for a challenger may be what takes TorchServe down.
_EXCUSED_EVERY_S = 600.0

_NOT_LOADED = SkippedItem("the challenger is not loaded yet")
_EXCUSED = SkippedItem("TorchServe did not answer the champion either")

log = structlog.get_logger()


@dataclass
class ChallengerBatch:
    """The shared items of one batch while the challenger scores them."""

    places: tuple[int, ...]
    scoring: "Future[list[Judged]] | None" = None
    """None: it scores none of them"""
    why_not: Challenged = _NOT_LOADED
    """what is told in their place then"""


@dataclass
class Challenger:
    """The part of one worker that asks the challenger."""

    sandbox: Sandbox
    torchserve: TorchServe
    serving: Serving
    ingest: IngestSettings
    settings: DetectorSettings
    unknown_bytes: int
    _budget: LookBudget = field(default_factory=LookBudget)
    _under_way: "Future[list[Judged]] | None" = None
    _excused_until: float = 0.0
    _excused_next: float = 0.0
    _excuses: bool = False
    """of this batch: an outage is one, however long it lasts"""

    def begin(self, batch: Batch, route: Route, *, waiting: bool, behind: bool) -> ChallengerBatch:
        """Have the challenger score the batch's shared items; returns at once.

        waiting: more records wait. behind: so long that none of them is shared.
        """
        places = tuple(place for place, opened in enumerate(batch) if opened.shared)
        beside, self._excuses = ChallengerBatch(places), False
        if not places:
            return beside
        if behind:
            beside.why_not = SkippedItem("the stream was behind")
        elif route.canary is None:
            beside.why_not = route.refused[1] if route.refused else beside.why_not
        elif self._under_way is not None and not self._under_way.done():
            beside.why_not = self._fault("it is still scoring earlier items")
        else:
            shared = tuple(self._open_for_challenger(batch[place], route.canary) for place in places)
            work = partial(self._judge, shared, route, waiting=waiting)
            beside.scoring = self._under_way = in_thread(work, "challenger")
        return beside

    def end(self, beside: ChallengerBatch, took_s: float) -> dict[int, Challenged]:
        """Return the result of each compared shared item, by its place.

        took_s: how long the champion took, seconds.
        """
        if beside.scoring is not None:
            patience_s = max(_LEAST_PATIENCE_S, _PATIENCE * took_s)
            wait([beside.scoring], patience_s)
            if not beside.scoring.done():
                beside.why_not = self._fault(f"no answer {patience_s:.1f} s after the champion's")
            elif (error := beside.scoring.exception()) is None:
                return dict(zip(beside.places, beside.scoring.result(), strict=True))
            else:
                beside.why_not = _EXCUSED if self._fell_for_both() else self._fault(f"{error}")
        if isinstance(beside.why_not, SkippedItem):
            metrics.SHARED.labels("left_out").inc(len(beside.places))
        return dict.fromkeys(beside.places, beside.why_not)

    def excuse(self) -> None:
        """TorchServe does not answer the champion either."""
        now = time.monotonic()
        if self._excuses or now >= self._excused_next:
            self._excuses = True
            self._excused_until, self._excused_next = now + _EXCUSE_S, now + _EXCUSED_EVERY_S

    def _fell_for_both(self) -> bool:
        """Whether TorchServe fell after the champion's answer of this batch, which meets it in the next."""
        route = self.serving.route
        if route is None or time.monotonic() < self._excused_next:
            return False
        try:
            return route.stable.version not in self.torchserve.versions(_LEAST_PATIENCE_S)
        except TorchServeUnavailableError:
            return True

    def _fault(self, why: str) -> SkippedItem | str:
        """The challenger's error where it does not answer, or its excuse."""
        if time.monotonic() < self._excused_until:
            return _EXCUSED
        log.warning("the challenger does not answer", error=why)
        return why

    def _open_for_challenger(self, opened: Opened, canary: Artifact) -> Opened:
        """The same record for the challenger; decoded anew only where its plan differs."""
        plan = canary.manifest.contract.media_plan
        if plan == opened.artifact.manifest.contract.media_plan:
            return replace(opened, artifact=canary)
        media = RecordMedia(opened.record, self.ingest)
        return Opened(opened.record, canary, media, self.sandbox.submit(media, plan), opened.since, True)

    def _judge(self, batch: Batch, route: Route, *, waiting: bool) -> list[Judged]:
        again = partial(self._look_again, route, waiting=waiting)
        ask = partial(score, self.torchserve, self.serving, pause=leave)
        return judge(batch, ask, self.settings, self.unknown_bytes, again=again)

    def _look_again(
        self, route: Route, artifact: Artifact, items: Sequence[JudgedItem], *, waiting: bool
    ) -> Sequence[JudgedItem]:
        looks = second_looks(
            artifact,
            partial(self.torchserve.predict, artifact),
            mapped=route.canary_answers,  # no comparison has a map
            max_request_bytes=self.settings.max_request_bytes,
        )
        seconds = self._budget.seconds(waiting=waiting)
        again = run_second_pass(items, looks, self.sandbox.submit, seconds=seconds)
        self._budget.charge()
        return again


def in_thread(work: "partial[_T]", name: str) -> "Future[_T]":
    """Run it in a thread of its own, which holds up no end of the process: it may wait for TorchServe."""
    future: Future[_T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # whatever it is, it is told where the items are
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future

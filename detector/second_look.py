"""The second look at items: when, and where, is each forged?

Whatever fails here, want of memory apart, is logged, and the verdict goes out without it. But a video that
its look could not see is not called real.
"""

import hashlib
import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Protocol

import structlog

from detector.release.artifact import Artifact
from detector.release.crop_graphs import map_problem
from detector.second_pass.map_look import MAX_REQUEST_BYTES, MapLook
from detector.second_pass.scan_look import ScanLook, StretchLook
from detector.serving.torchserve import TorchServeUnavailableError
from detector.verdicts import Ask, JudgedItem
from ingest.records import Decoded, Plan
from ingest.sandbox.decode import DecodeError
from ingest.sandbox.sandbox import SandboxUnavailableError, wait_decoded

log = structlog.get_logger()

# Media, where to look, and what earlier looks took → what is decoded of it: `Sandbox.submit`.
Look = Callable[[Callable[[], bytes], Plan, float], "Future[Decoded]"]


class SecondLook(Protocol):
    """One thing that a release can say by looking at an item again."""

    @property
    def adds(self) -> str:
        """What it adds to a verdict, for the log; so many seconds it took by the timings' field `…_s`."""

    @property
    def is_optional(self) -> bool:
        """Whether it may be left out while records wait."""

    @property
    def most_crops(self) -> int:
        """Most crops of the items that are asked about in one request; 0: each item alone."""

    def looks_at(self, item: JudgedItem) -> bool:
        """Whether an item is looked at."""

    def was_missed(self, item: JudgedItem) -> bool:
        """Whether an item goes out without this look, which alone could show it forged."""

    def plan(self, item: JudgedItem) -> Plan:
        """Return where to look in an item that is looked at. Raises ValueError where no plan is possible."""

    def add_results(self, items: Sequence[JudgedItem], decoded: Sequence[Decoded]) -> list[JudgedItem]:
        """Return the items with the look's results. Raises whatever goes wrong with any of them."""


_MOST_TOLD_CHARS = 200
# What second looks may take beyond the first ones: so a short burst is looked at as if nothing waited.
_CREDIT_S = 60.0


class LookBudget:
    """Bounds the time of a worker's second looks while records wait: as long as all else takes, and a minute.

    Where most items are unknown, second looks take longer than first ones, and lag would grow by them alone.
    Where nothing waits they are never bounded, so that what is said then does not depend on any clock.
    """

    def __init__(self) -> None:
        self._left_s = _CREDIT_S
        self._since_s = time.monotonic()

    def seconds(self, *, waiting: bool) -> float:
        """Return how long the second looks that now begin may take; without end where no record waits."""
        now_s = time.monotonic()
        earned_s = self._left_s + now_s - self._since_s
        self._left_s, self._since_s = min(_CREDIT_S, earned_s) if waiting else _CREDIT_S, now_s
        return max(0.0, self._left_s) if waiting else math.inf

    def charge(self) -> None:
        """Take the time since `seconds` from the rest."""
        now_s = time.monotonic()
        self._left_s, self._since_s = self._left_s - (now_s - self._since_s), now_s


def second_looks(
    artifact: Artifact,
    ask: Ask,
    *,
    also_real: bool = False,
    mapped: Callable[[str], bool] = lambda _: True,
    max_request_bytes: int = MAX_REQUEST_BYTES,
) -> list[SecondLook]:
    """Return a release's second looks, in the order in which one look follows from another.

    ask: that of its graphs which takes the request. also_real: maps are made of what is called real, too.
    mapped: whether one may be made of the item of an id.
    max_request_bytes: of a request about several items.
    """
    looks: list[SecondLook] = []
    if artifact.manifest.scanner is not None:
        looks += [ScanLook(artifact.manifest.scanner, ask), StretchLook(artifact, ask)]
    localizer = artifact.manifest.localizer
    if localizer is not None and map_problem(localizer.reals_marked) is None:
        looks.append(MapLook(localizer, ask, also_real, mapped, max_request_bytes))
    return looks


def run_second_pass(
    items: Sequence[JudgedItem],
    looks: Sequence[SecondLook],
    look: Look,
    *,
    beat: Callable[[], None] = lambda: None,
    seconds: float = math.inf,
) -> list[JudgedItem]:
    """Return the items in order, each with what those looks add that look at it after the looks before.

    beat is called while a look is awaited. seconds: after so many, looks that may be left out are, and
    the verdicts say so. Where TorchServe or the sandbox cannot answer now, nothing behind is asked for: no
    verdict waits for one who is away.
    """
    now, until = list(items), time.monotonic() + seconds
    why: dict[int, str] = {}
    for again in looks:
        if not _Pass(again, now, beat, until if again.is_optional else math.inf, why).run_look(look):
            break
    for place, item in enumerate(now):
        if any(again.was_missed(item) for again in looks):
            update = {"unscanned": why.get(place, "nobody was there to scan it")}
            update |= {"label": "unknown"} if item.verdict.label == "real" else {}
            now[place] = replace(item, verdict=item.verdict.model_copy(update=update))
    return now


class _DecodedItem(NamedTuple):
    """An item that was decoded for a look: its place, and the seconds that were waited for it."""

    place: int
    decoded: Decoded
    waited_s: float


@dataclass(frozen=True)
class _Pass:
    """One look at all items that it looks at; they are put into their places anew."""

    again: SecondLook
    items: list[JudgedItem]
    beat: Callable[[], None]
    until: float
    why: dict[int, str]
    """what failed first of an item, by its place"""

    def run_look(self, look: Look) -> bool:
        """Look; False as soon as nobody is there to ask."""
        queue = self._queue_items(look)
        together: list[_DecodedItem] = []
        there = True
        while there and queue and time.monotonic() < self.until:
            place, decoding = queue.popleft()
            began = time.perf_counter()
            try:
                entry = _DecodedItem(place, wait_decoded(decoding, self.beat), time.perf_counter() - began)
            except Exception as error:
                if isinstance(error, DecodeError) and error.reason == "timeout":
                    self.items[place] = replace(self.items[place], processor_s=math.inf)
                there = self._log_failure(error, place)
                continue
            if together and _crops([*together, entry]) > self.again.most_crops:
                there, together = self._ask_model(together), []
            together.append(entry)
            if there and _crops(together) >= self.again.most_crops:
                # What was decoded is let go of once it was looked at.
                there, together = self._ask_model(together), []
        there = there and self._ask_model(together)
        for place, decoding in queue:
            decoding.cancel()
            if there:
                self._leave_out(place)
        return there

    def _queue_items(self, look: Look) -> "deque[tuple[int, Future[Decoded]]]":
        queue: deque[tuple[int, Future[Decoded]]] = deque()
        for place, item in enumerate(self.items):
            if not self.again.looks_at(item):
                continue
            if time.monotonic() >= self.until:
                self._leave_out(place)
                continue
            try:
                decoding = look(partial(_read_unchanged, item), self.again.plan(item), item.processor_s)
                queue.append((place, decoding))
            except Exception as error:
                self._log_failure(error, place)
        return queue

    def _ask_model(self, together: Sequence[_DecodedItem]) -> bool:
        """Put what was seen of these items into their places; where that fails of several, of each alone."""
        items = [self.items[entry.place] for entry in together]
        decoded = [entry.decoded for entry in together]
        began = time.perf_counter()
        try:
            added = self.again.add_results(items, decoded) if together else []
        except Exception as error:
            if len(together) > 1 and not isinstance(error, TorchServeUnavailableError | MemoryError):
                return all(self._ask_model([entry]) for entry in together)
            logged = [self._log_failure(error, entry.place) for entry in together]
            return all(logged)
        for entry, item in zip(together, added, strict=True):
            took_s = entry.waited_s + (time.perf_counter() - began) / len(together)
            timings = item.verdict.timings.model_copy(update={f"{self.again.adds}_s": took_s})
            verdict = item.verdict.model_copy(update={"timings": timings})
            self.items[entry.place] = replace(item, verdict=verdict, processor_s=entry.decoded.processor_s)
        return True

    def _leave_out(self, place: int) -> None:
        verdict = self.items[place].verdict
        left_out = {"left_out": (*verdict.left_out, self.again.adds)}
        self.items[place] = replace(self.items[place], verdict=verdict.model_copy(update=left_out))

    def _log_failure(self, error: Exception, place: int) -> bool:
        """Log an item's failure, but raise want of memory; False where nobody is there to ask."""
        if isinstance(error, MemoryError):
            raise error
        problem = " ".join(f"{type(error).__name__}: {error}".split())[:_MOST_TOLD_CHARS]
        self.why.setdefault(place, problem)
        item = self.items[place].verdict.id
        log.warning(f"verdict goes out without a {self.again.adds}", item=item, error=problem)
        return not isinstance(error, TorchServeUnavailableError | SandboxUnavailableError)


def _crops(together: Sequence[_DecodedItem]) -> int:
    return sum(len(item.decoded.crops) for item in together)


def _read_unchanged(item: JudgedItem) -> bytes:
    """Open the media again. Raises ValueError where a claim check's file is another one now."""
    data = item.media()
    if hashlib.sha256(data).hexdigest() != item.verdict.item.digest:
        raise ValueError("the media has changed since the first look")
    return data

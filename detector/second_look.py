"""The second look at an item: when, and where, is it forged?

Whatever fails here, want of memory apart, is logged, and the verdict goes out without it.
"""

import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import structlog

from detector.looks.judged_item import Ask, JudgedItem, SecondLook
from detector.looks.map_look import MapLook
from detector.looks.scan_look import ScanLook
from detector.looks.stretch_look import StretchLook
from detector.records import Verdict
from detector.release.artifact import Artifact
from detector.serving.torchserve import TorchServeUnavailableError
from ingest.records import Decoded, Plan
from ingest.sandbox.sandbox import SandboxUnavailableError

log = structlog.get_logger()

Look = Callable[[Callable[[], bytes], Plan], "Future[Decoded]"]
"""Media and where to look → what is decoded of it: `Sandbox.submit`."""


def second_looks(artifact: Artifact, ask: Ask, *, also_real: bool = False) -> list[SecondLook]:
    """Return what a release can say by looking again, in the order in which one look follows from another.

    ask: that of its graphs which takes the request. also_real: maps are made of what is called real, too.
    """
    looks: list[SecondLook] = []
    if artifact.manifest.scanner is not None:
        looks += [ScanLook(artifact.manifest.scanner, ask), StretchLook(artifact, ask)]
    if artifact.manifest.localizer is not None:
        looks.append(MapLook(artifact.manifest.localizer, ask, also_real=also_real))
    return looks


def looked_again(
    seen: Sequence[JudgedItem],
    looks: Sequence[SecondLook],
    look: Look,
    *,
    beat: Callable[[], None] = lambda: None,
) -> list[JudgedItem]:
    """Return the items in order, each with what those looks add that look at it after the looks before.

    beat is called before each look is awaited. Where TorchServe or the sandbox cannot answer now, nothing
    behind is asked for: no verdict waits for one who is away.
    """
    now = list(seen)
    for again in looks:
        if not _looked(again, now, look, beat):
            break
    return now


def _looked(again: SecondLook, now: list[JudgedItem], look: Look, beat: Callable[[], None]) -> bool:
    """Put items that one look looks at in their places anew; False as soon as nobody is there to ask."""
    looking: deque[tuple[int, Future[Decoded]]] = deque()
    for place, one in enumerate(now):
        if again.looks_at(one):
            with _without(again, one.verdict):
                looking.append((place, look(partial(_unchanged, one), again.plan(one))))
    while looking:
        # What was decoded is let go of once it was looked at.
        place, decoding = looking.popleft()
        beat()
        with _without(again, now[place].verdict) as failed:
            began = time.perf_counter()
            one = again.added(now[place], decoding.result())
            took = {f"{again.adds}_s": time.perf_counter() - began}
            timings = one.verdict.timings.model_copy(update=took)
            now[place] = replace(one, verdict=one.verdict.model_copy(update={"timings": timings}))
        if any(isinstance(one, TorchServeUnavailableError | SandboxUnavailableError) for one in failed):
            for _, behind in looking:
                behind.cancel()
            return False
    return True


@contextmanager
def _without(again: SecondLook, verdict: Verdict) -> Iterator[list[Exception]]:
    """Log what fails within; the list that is given then holds it."""
    failed: list[Exception] = []
    try:
        yield failed
    except MemoryError:
        raise
    except Exception as error:
        failed.append(error)
        log.warning(
            f"verdict goes out without a {again.adds}",
            item=verdict.id,
            error=f"{type(error).__name__}: {error}",
        )


def _unchanged(one: JudgedItem) -> bytes:
    """Open the media again. Raises ValueError where a claim check's file is another one now."""
    data = one.media()
    if hashlib.sha256(data).hexdigest() != one.verdict.item.digest:
        raise ValueError("the media is not what it was at the first look")
    return data

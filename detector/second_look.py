"""The second look at an item: where, and when, is it forged? It only adds to verdicts.

Whatever fails here, want of memory apart, is logged, and the verdict goes out without it.
"""

import hashlib
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial

import structlog

from detector.manifest import Manifest
from detector.map_look import MapLook
from detector.records import Verdict
from detector.scan_look import ScanLook
from detector.seen import Ask, SecondLook, Seen
from detector.torchserve import TorchServeUnavailableError
from ingest.records import Decoded, PlacesPlan
from ingest.sandbox import SandboxUnavailableError

log = structlog.get_logger()

Look = Callable[[Callable[[], bytes], PlacesPlan], "Future[Decoded]"]
"""Media and where to look → its crops: `Sandbox.submit`."""


def second_looks(
    manifest: Manifest, ask_map: Ask, ask_scan: Ask, *, also_real: bool = False
) -> list[SecondLook]:
    """Return what a release can say by looking again, by its localizer and by its scanner.

    also_real: maps are made of what is called real, too.
    """
    looks: list[SecondLook] = []
    if manifest.localizer is not None:
        looks.append(MapLook(manifest.localizer, ask_map, also_real=also_real))
    if manifest.scanner is not None:
        looks.append(ScanLook(manifest.scanner, ask_scan))
    return looks


def looked_again(
    seen: Sequence[Seen],
    looks: Sequence[SecondLook],
    look: Look,
    *,
    beat: Callable[[], None] = lambda: None,
) -> list[Verdict]:
    """Return the items' verdicts in order, each with what those looks add that look at it.

    beat is called before each look is awaited. Where TorchServe or the sandbox cannot answer now, the items
    behind are not asked for: no verdict waits for one who is away.
    """
    looking: deque[tuple[int, SecondLook, Future[Decoded]]] = deque()
    verdicts = [one.verdict for one in seen]
    for place, one in enumerate(seen):
        for again in looks:
            if again.looks_at(one):
                with _without(again, one.verdict):
                    looking.append((place, again, look(partial(_unchanged, one), again.plan(one))))
    away = False
    while looking:
        # What was decoded is let go of once it was looked at.
        place, again, crops = looking.popleft()
        if away:
            crops.cancel()
            continue
        beat()
        with _without(again, verdicts[place]) as failed:
            began = time.perf_counter()
            verdict = again.added(verdicts[place], crops.result())
            timings = verdict.timings.model_copy(update={f"{again.adds}_s": time.perf_counter() - began})
            verdicts[place] = verdict.model_copy(update={"timings": timings})
        away = any(isinstance(one, TorchServeUnavailableError | SandboxUnavailableError) for one in failed)
    return verdicts


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


def _unchanged(one: Seen) -> bytes:
    """Open the media again. Raises ValueError where a claim check's file is another one now."""
    data = one.media()
    if hashlib.sha256(data).hexdigest() != one.verdict.item.digest:
        raise ValueError("the media is not what it was at the first look")
    return data

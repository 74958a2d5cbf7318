"""Decodes hostile media in child processes that can be killed at any time.

The parent keeps a few children (child.py) and one thread for each, which hands it items and waits. A child
may have been taken over by what it decoded: what it says is checked (wire.py), and none lives long.
Whether an item is to blame for the end of its child is only ever told by a fresh one, since what ended an
older child may have been left there by an item before. But the processor time of an item is added up over
its tries and looks, whoever ended them: so it has an end, whatever the host does.
"""

import contextlib
import hashlib
import itertools
import queue
import threading
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from typing import Self, get_args

import structlog

from ingest import metrics
from ingest.records import Decoded, PlacesPlan, Plan
from ingest.sandbox import child as children
from ingest.sandbox.child import Child, KilledError, SandboxUnavailableError
from ingest.sandbox.decode import DecodeError, DecodeReason
from ingest.sandbox.forks import Forks
from ingest.settings import IngestSettings

__all__ = ["Sandbox", "SandboxUnavailableError", "wait_decoded"]

log = structlog.get_logger()

# Bounds what a decoder leaks, and how long one that was taken over sees others' media.
_MOST_ITEMS_A_CHILD = 500
_MOST_TRIES = 3
# A child that is killed each time it decodes an item, and holds this share of its memory limit then, is
# taken for killed by what the item needs; a smaller one for a victim of what else the host does.
_BLAMED_SHARE = 0.5
_MOST_UNANSWERED = 1_000
_CLOSE_TIMEOUT_S = 60.0
_BEAT_INTERVAL_S = 5.0

# A counter that first shows with its first events has no increase that a rate would see.
for _reason in ("aged", "killed", "busy", *get_args(DecodeReason)):
    metrics.SANDBOX_RESTARTS.labels(_reason)

_Media = bytes | Callable[[], bytes]
_SECOND_LOOK, _FIRST_LOOK, _END = range(3)
_Item = tuple[_Media, Plan, float, "Future[Decoded]"]


def wait_decoded(decoding: "Future[Decoded]", beat: Callable[[], None]) -> Decoded:
    """Wait for a sandbox's result; beat is called meanwhile, since a busy host takes its time.

    Raises what the future does.
    """
    beat()
    while not decoding.done():
        wait([decoding], _BEAT_INTERVAL_S)
        beat()
    return decoding.result()


class Sandbox:
    """A pool of decoding children; a context manager, usable from several threads.

    Entering starts all children and raises SandboxUnavailableError where one does not come up.
    anchors gives PEM of the certificates that signers of credentials are trusted by now; empty: none is.
    """

    def __init__(self, settings: IngestSettings, anchors: Callable[[], str] = str) -> None:
        self._settings, self._anchors = settings, anchors
        self._items: queue.PriorityQueue[tuple[int, int, _Item | None]] = queue.PriorityQueue()
        self._count = itertools.count()
        self._threads: list[threading.Thread] = []
        self._closed = False
        self._turns = _Turns(settings.decode_processes)
        self._unanswered = RetryBudget()
        self._forks: Forks | None = None

    def __enter__(self) -> Self:
        self._forks = Forks(self._settings.max_pixels)
        ready: list[Future[None]] = []
        for number in range(self._settings.decode_processes):
            started: Future[None] = Future()
            serve = partial(self._serve, started, self._forks)
            thread = threading.Thread(target=serve, name=f"sandbox-{number}", daemon=True)
            thread.start()
            ready.append(started)
            self._threads.append(thread)
        try:
            for started in ready:
                started.result()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, media: _Media, plan: Plan, spent_s: float = 0.0) -> "Future[Decoded]":
        """Queue media for decoding and cropping; a callable is called for it when its turn has come.

        spent_s: the processor time that earlier looks at it took, seconds.

        The future gives a Decoded, or raises DecodeError (fatal for the item; timeout, out_of_memory
        and crashed say how it ended a fresh child), SandboxUnavailableError (retryable), or what the
        callable raises. The media is held once, and let go with the answer: of media by callable, no more
        is held at a time than that of one item a child.
        """
        future: Future[Decoded] = Future()
        if self._closed or not self._threads:
            raise RuntimeError("the sandbox is not open")
        # A batch waits for its second looks, and the next one's first looks are queued before them.
        turn = _SECOND_LOOK if isinstance(plan, PlacesPlan) else _FIRST_LOOK
        self._put(turn, (media, plan, spent_s, future))
        return future

    def close(self) -> None:
        """End the children; queued items are cancelled."""
        self._closed = True
        for _ in self._threads:
            self._put(_END, None)
        for thread in self._threads:
            thread.join(children.DECODE_TIMEOUT_S + _CLOSE_TIMEOUT_S)
        if self._forks is not None:
            self._forks.close()
            self._forks = None
        with contextlib.suppress(queue.Empty):
            while True:
                *_, item = self._items.get_nowait()
                if item:
                    item[-1].cancel()

    def _put(self, turn: int, item: _Item | None) -> None:
        """Queue an item; of one turn, those that came first go first."""
        self._items.put((turn, next(self._count), item))

    def _serve(self, started: "Future[None]", forks: Forks) -> None:
        server = _SandboxServer(self._settings, self._turns, forks, self._unanswered)
        try:
            server.prepare()
        except SandboxUnavailableError as error:
            started.set_exception(error)
            return
        started.set_result(None)
        while (item := self._items.get()[-1]) is not None:
            media, plan, spent_s, future = item
            del item
            if self._closed:
                future.cancel()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(self._decode(server, media, plan, spent_s))
            except Exception as error:
                _forget_locals(error)
                future.set_exception(error)
            del media, future  # or they would be held until the next item comes
            if not self._closed:
                # Started now and not with the next item, which would wait for it.
                with contextlib.suppress(SandboxUnavailableError):
                    server.prepare()
        server.close()

    def _decode(self, server: "_SandboxServer", media: _Media, plan: Plan, spent_s: float) -> Decoded:
        data = media() if callable(media) else media
        if len(data) > self._settings.max_fetched_bytes:
            problem = f"{len(data)} bytes; the limit is {self._settings.max_fetched_bytes}"
            raise DecodeError("too_large", problem)
        again = isinstance(plan, PlacesPlan)
        with (metrics.DECODE_AGAIN_SECONDS if again else metrics.DECODE_SECONDS).time():
            # At the first look alone.
            anchors = None if again or plan.frames else self._anchors()
            return server.decode(data, plan, spent_s, anchors)


class _SandboxServer:
    """One thread's child, replaced where it is spent or has served long enough."""

    def __init__(self, settings: IngestSettings, turns: "_Turns", forks: Forks, spent: "RetryBudget") -> None:
        self._settings, self._turns, self._forks, self._unanswered = settings, turns, forks, spent
        self._child: Child | None = None

    def prepare(self) -> Child:
        """Have a child that can take an item. Raises SandboxUnavailableError."""
        if self._child is not None and (self._child.is_spent or self._child.items >= _MOST_ITEMS_A_CHILD):
            if not self._child.is_spent:
                metrics.SANDBOX_RESTARTS.labels("aged").inc()
            self.close()
        if self._child is None:
            self._child = Child(self._settings, self._forks)
        return self._child

    def decode(self, data: bytes, plan: Plan, spent_s: float, anchors: str | None) -> Decoded:
        """Decode one item, in another child where one ends by no fault of the item's.

        What its tries take is added up, with the seconds that earlier looks took. The last try is made while
        no other child decodes: there is no more memory and no more processor to be had on this host. Raises
        DecodeError, SandboxUnavailableError.
        """
        try:
            decoded = self._try_decode(data, plan, spent_s, anchors)
        except DecodeError:
            self._unanswered.end(data)
            raise
        self._unanswered.end(data)
        return decoded

    def _try_decode(self, data: bytes, plan: Plan, spent_s: float, anchors: str | None) -> Decoded:
        tries_left, most_s = _MOST_TRIES, children.most_processor_s(data)
        while True:
            tries_left -= 1
            before_s = spent_s + self._unanswered.seconds(data)
            if before_s >= most_s:
                raise DecodeError("timeout", "its processor time is used up by earlier tries and looks")
            with self._turns.take(alone=not tries_left):
                child = self.prepare()
                was_fresh = child.items == 0
                try:
                    decoded = child.decode(data, plan, most_s - before_s, anchors)
                    if child.is_spent:  # by the reading of provenance
                        metrics.SANDBOX_RESTARTS.labels("crashed").inc()
                        self._forks.count_crash()
                    return replace(decoded, processor_s=before_s + child.item_s)
                except DecodeError as error:
                    if child.is_spent:
                        metrics.SANDBOX_RESTARTS.labels(error.reason).inc()
                    if error.reason == "crashed":
                        self._forks.count_crash()
                    if not child.is_spent or was_fresh or error.reason == "timeout":
                        raise
                    self._unanswered.add(data, child.item_s)
                except KilledError as error:
                    metrics.SANDBOX_RESTARTS.labels("killed").inc()
                    self._unanswered.add(data, child.item_s)
                    if not tries_left:
                        raise self._blame(error) from error
                except SandboxUnavailableError:
                    metrics.SANDBOX_RESTARTS.labels("busy").inc()
                    self._unanswered.add(data, child.item_s)
                    raise

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None

    def _blame(self, error: KilledError) -> DecodeError | KilledError:
        if error.held_bytes < _BLAMED_SHARE * children.MAX_DECODE_MEMORY_BYTES:
            return error
        held = f"the last with {error.held_bytes / 1e6:.0f} MB in use"
        return DecodeError("out_of_memory", f"killed at each of {_MOST_TRIES} tries, {held}")


class _Turns:
    """Who may decode: all threads at a time, or one alone."""

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._free = threading.BoundedSemaphore(threads)
        # Turns are taken one after the other, or one that waits for all would wait for ever.
        self._taking = threading.Lock()

    @contextlib.contextmanager
    def take(self, *, alone: bool) -> Iterator[None]:
        count = self._threads if alone else 1
        with self._taking:
            for _ in range(count):
                self._free.acquire()
        try:
            yield
        finally:
            self._free.release(count)


class RetryBudget:
    """The processor seconds of tries that the host ended, by media, until that has its answer.

    An item comes back after them, as another record of the same bytes would: then both pay.
    """

    def __init__(self) -> None:
        self._seconds: dict[bytes, float] = {}
        self._lock = threading.Lock()

    def seconds(self, data: bytes) -> float:
        return self._seconds.get(_digest(data), 0.0) if self._seconds else 0.0

    def add(self, data: bytes, seconds: float) -> None:
        """Add what one more try took; of more media than anybody tries at a time, the oldest is forgotten."""
        with self._lock:
            self._seconds[_digest(data)] = self._seconds.pop(_digest(data), 0.0) + seconds
            if len(self._seconds) > _MOST_UNANSWERED:
                del self._seconds[next(iter(self._seconds))]

    def end(self, data: bytes) -> None:
        if self._seconds:
            with self._lock:
                self._seconds.pop(_digest(data), None)


def _digest(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


def _forget_locals(error: BaseException | None) -> None:
    """Let go of what an error's frames hold, which is the media: the error lives as long as its batch."""
    met: set[BaseException] = set()  # one raised from itself would have no end
    while error is not None and error not in met:
        met.add(error)
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__

"""A detector's worker in its own process that dies, or stands still, at a named point of its transaction.

The model answers in that process; all else is as it is in production.
"""

import ctypes
import multiprocessing
import multiprocessing.sharedctypes
import os
import signal
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from taken_back import Model

from detector import worker as worker_module
from detector.release.artifact import load
from detector.serving.rollout import Route
from detector.settings import DetectorSettings
from detector.worker import Worker
from ingest.kafka import sink as sink_module
from ingest.kafka import source as source_module
from ingest.kafka.sink import TransactionalSink
from ingest.kafka.source import Source
from ingest.process.health import Heartbeat
from ingest.sandbox.sandbox import Sandbox
from ingest.settings import IngestSettings

POINTS = ("after poll", "after send", "after offsets", "before commit", "after commit")
_UNARMED = -1
_ENDLESS_MS = 600_000
Defence = Literal["one transaction", "membership", "trying again", "session"]


@dataclass
class Slot:
    """One worker's slot: its process is started again under the same transactional id."""

    ingest: IngestSettings
    settings: DetectorSettings
    artifact: Path
    without: Defence | None = None
    """a defence that is off: a control"""
    name: str = field(default_factory=lambda: f"slot-{uuid.uuid4().hex}")
    process: Any = None
    _armed: Any = field(default_factory=lambda: multiprocessing.sharedctypes.RawArray(ctypes.c_int, 3))

    def start(self) -> None:
        self._armed[0], self._armed[2] = _UNARMED, 0
        about = (self.ingest, self.settings, self.artifact, self.name, self._armed, self.without)
        self.process = multiprocessing.get_context("spawn").Process(target=_work, args=about)
        self.process.start()

    def arm(self, point: str, number: int = signal.SIGKILL) -> None:
        """Have the process send itself this signal when it next comes to the point."""
        self._armed[1] = number
        self._armed[0] = POINTS.index(point)

    @property
    def came_to_it(self) -> bool:
        """Whether the process came to the point that it was armed for."""
        return bool(self._armed[0] == _UNARMED)

    @property
    def ready(self) -> bool:
        """Whether the process ends in an orderly way when it is told to."""
        return bool(self._armed[2])

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


def _work(
    ingest: IngestSettings,
    settings: DetectorSettings,
    folder: Path,
    name: str,
    armed: Any,
    without: Defence | None,
) -> None:
    def at(point: str) -> None:
        if armed[0] == POINTS.index(point):
            armed[0] = _UNARMED
            os.kill(os.getpid(), armed[1])

    real = sink_module._transaction

    def transaction(producer: Any, records: Any, offsets: Any, membership: Any) -> float:
        if without == "one transaction":
            real(producer, records, {}, None)
            at("after send")
            return real(producer, [], offsets, membership)
        if without == "membership":
            membership = membership.group_id
        return real(_Dying(producer, at), records, offsets, membership)

    sink_module._transaction = transaction
    if without == "trying again":
        worker_module.CommitError = NotImplementedError  # type: ignore[attr-defined]  # which nothing raises
    if without == "session":
        source_module._SESSION_TIMEOUT_MS = _ENDLESS_MS
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    armed[2] = 1
    artifact = load(folder)
    serving: Any = SimpleNamespace(
        route=Route(artifact), tick=lambda: None, request_reload=lambda artifact: None
    )
    model: Any = Model(artifact)
    with (
        Sandbox(ingest) as sandbox,
        TransactionalSink(ingest, name) as sink,
        Source(ingest, settings.group_id) as source,
    ):
        poll = source.poll

        def polled(*arguments: Any) -> Any:
            records = poll(*arguments)
            if records:
                at("after poll")
            return records

        source.poll = polled  # type: ignore[method-assign]
        Worker(source, sandbox, model, serving, sink, ingest, settings, stop, Heartbeat(60)).run()


class _Dying:
    """A producer whose process may end at each step of a transaction."""

    def __init__(self, producer: Any, at: Callable[[str], None]) -> None:
        self._producer, self._at = producer, at

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def send_offsets_to_transaction(self, *arguments: Any) -> None:
        self._producer.flush()
        self._at("after send")
        self._producer.send_offsets_to_transaction(*arguments)
        self._at("after offsets")

    def commit_transaction(self) -> None:
        self._at("before commit")
        self._producer.commit_transaction()
        self._at("after commit")

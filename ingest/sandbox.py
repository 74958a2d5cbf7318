"""Decodes hostile media in child processes that can be killed at any time.

The parent keeps a few persistent children (`python -m ingest`, see __main__.py) and one thread for
each, which hands it items and waits. Between them goes only what wire.py frames: JSON and raw bytes;
what a child says is checked, since a child may have been taken over by what it decoded.
"""

import contextlib
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType
from typing import Self

import structlog

from ingest import metrics, wire
from ingest.decode import DecodeError
from ingest.records import Decoded, MediaPlan
from ingest.settings import IngestSettings

log = structlog.get_logger(__name__)

_START_TIMEOUT_S = 60.0
# Nothing of the parent's environment (keys, proxies, preloads) reaches a child; one thread each, since
# thread pools take address space and the workers are what scales.
_ENVIRONMENT = {
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}

_Item = tuple[bytes, MediaPlan, "Future[Decoded]"]


class SandboxStartError(Exception):
    """A decoding child cannot be started; retryable, and no fault of the item."""


class Sandbox:
    """A pool of decoding children; a context manager, usable from several threads.

    Entering starts all children and raises SandboxStartError where one does not come up.
    """

    def __init__(self, settings: IngestSettings) -> None:
        self._settings = settings
        self._items: queue.SimpleQueue[_Item | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._closed = False

    def __enter__(self) -> Self:
        ready: list[Future[None]] = []
        for number in range(self._settings.decode_processes):
            started: Future[None] = Future()
            thread = threading.Thread(
                target=self._serve, args=(started,), name=f"sandbox-{number}", daemon=True
            )
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def submit(self, data: bytes, plan: MediaPlan) -> "Future[Decoded]":
        """Queue media for decoding and cropping.

        The future gives a Decoded, or raises DecodeError (fatal for the item; timeout, out_of_memory
        and crashed say how the child ended) or SandboxStartError (retryable).
        """
        future: Future[Decoded] = Future()
        if self._closed or not self._threads:
            raise RuntimeError("the sandbox is not open")
        if len(data) > self._settings.max_fetched_bytes:
            error = f"{len(data)} bytes; the limit is {self._settings.max_fetched_bytes}"
            future.set_exception(DecodeError("too_large", error))
        else:
            self._items.put((data, plan, future))
        return future

    def close(self) -> None:
        """End the children; what is still queued is cancelled."""
        self._closed = True
        for _ in self._threads:
            self._items.put(None)
        for thread in self._threads:
            thread.join(self._settings.decode_timeout_s + _START_TIMEOUT_S)
        with contextlib.suppress(queue.Empty):
            while True:
                if item := self._items.get_nowait():
                    item[2].cancel()

    def _serve(self, started: "Future[None]") -> None:
        # The child is started by the thread that serves it: the kernel kills it when that thread ends.
        try:
            child: _Child | None = _Child(self._settings)
        except SandboxStartError as error:
            started.set_exception(error)
            return
        started.set_result(None)
        while (item := self._items.get()) is not None:
            data, plan, future = item
            if self._closed:
                future.cancel()
            if not future.set_running_or_notify_cancel():
                continue
            began = time.perf_counter()
            try:
                child = child or _Child(self._settings)
                future.set_result(child.decode(data, plan))
            except Exception as error:
                if child is not None and child.is_spent:
                    metrics.SANDBOX_RESTARTS.labels(getattr(error, "reason", "unexpected")).inc()
                    child.kill()
                    child = None
                future.set_exception(error)
            metrics.DECODE_SECONDS.observe(time.perf_counter() - began)
            if child is None:
                # Started now and not with the next item, which would wait for it.
                with contextlib.suppress(SandboxStartError):
                    child = _Child(self._settings)
        if child is not None:
            child.kill()


class _Child:
    """One decoding process and the socket to it."""

    def __init__(self, settings: IngestSettings) -> None:
        self._timeout_s = settings.decode_timeout_s
        self.is_spent = False
        limits = wire.Limits(
            parent=os.getpid(),
            memory_bytes=settings.max_decode_memory_bytes,
            processor_s=settings.max_decode_processor_s,
            max_pixels=settings.max_pixels,
        )
        self._socket, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(  # noqa: S603 - our own module, our own interpreter
                    [sys.executable, "-E", "-s", "-m", "ingest", limits.model_dump_json()],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd=Path(__file__).parents[1],
                    env=_ENVIRONMENT,
                )
            except OSError as error:
                self._socket.close()
                raise SandboxStartError(f"cannot start a decoding process: {error}") from error
        try:
            wire.receive_ready(self._socket, time.monotonic() + _START_TIMEOUT_S)
        except (OSError, wire.WireError) as error:
            self.kill()
            raise SandboxStartError(
                f"the decoding process ended with {self._process.returncode}: {error}"
            ) from error

    def decode(self, data: bytes, plan: MediaPlan) -> Decoded:
        deadline = time.monotonic() + self._timeout_s
        try:
            wire.send_item(self._socket, data, plan, deadline)
            return wire.receive_decoded(self._socket, plan, deadline)
        except DecodeError as error:
            # After a failed allocation the heap is as good as full.
            self.is_spent = error.reason == "out_of_memory"
            raise
        except TimeoutError as error:
            self.is_spent = True
            raise DecodeError("timeout", f"not decoded within {self._timeout_s:g} s") from error
        except wire.WireError as error:
            self.is_spent = True
            raise DecodeError("crashed", f"the decoder broke the protocol: {error}") from error
        except OSError as error:
            self.is_spent = True
            raise self._death(error) from error

    def _death(self, error: OSError) -> DecodeError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(1.0)
            if code == -signal.SIGXCPU:
                return DecodeError("timeout", "the decoder used up its processor time")
            return DecodeError("crashed", f"the decoder ended with {code}")
        return DecodeError("crashed", f"the decoder does not answer: {error}")

    def kill(self) -> None:
        self.is_spent = True
        self._socket.close()
        self._process.kill()
        self._process.wait()

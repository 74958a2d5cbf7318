"""One decoding child: its start, its limits from outside, and its end.

A child has the socket to it and nothing else (forks.py). Its limits are set here, before it gets any media,
and it has no system call left to lift them.
"""

import contextlib
import os
import resource
import signal
import socket
import time
from dataclasses import replace

import psutil

from ingest.records import Decoded, Plan, Provenance
from ingest.sandbox import wire
from ingest.sandbox.containers import count_heif_pixels
from ingest.sandbox.decode import DecodeError
from ingest.sandbox.forks import Forks
from ingest.sandbox.wire import Waiting, WireError
from ingest.settings import IngestSettings

MAX_DECODE_MEMORY_BYTES = 738_197_504
"""Memory of one child: what is loaded, and a HEIF of 50 million pixels of 10 bits while it becomes RGB."""
_SHARED_BYTES = 33_554_432
"""Of it, what children share with the process that forks them: pages of libraries, read and never written."""
MAX_DECODE_PROCESSOR_S = 5.0
"""Processor time for one item, over all tries and looks: what takes longer would hold up the stream, or is
made to. Wall time says nothing of an item: on a busy host any takes long."""
DECODE_TIMEOUT_S = 20.0
"""Wall time that a decoder may sleep in all, or may be given no processor at a stretch."""
_MAX_PROVENANCE_S = 1.0
"""Processor time for a file's statements about its origin, behind its pixels."""
_START_TIMEOUT_S = 60.0
# What a process that has no system call to send signals can only get by its own doing.
_OWN_SIGNALS = [
    signal.Signals[f"SIG{name}"] for name in ("SEGV", "BUS", "ILL", "FPE", "TRAP", "ABRT", "SYS", "XCPU")
]


class SandboxUnavailableError(Exception):
    """The host does not let media be decoded; retryable, and no fault of the item."""


class KilledError(SandboxUnavailableError):
    """A child was killed from outside, which was seen to hold held_bytes of memory."""

    def __init__(self, signal_number: int, held_bytes: int) -> None:
        super().__init__(
            f"the decoding process was killed from outside (signal {signal_number}), "
            f"while it held {held_bytes / 1e6:.0f} MB of memory"
        )
        self.held_bytes = held_bytes


class Child:
    """One decoding process, ready for items. Raises SandboxUnavailableError where it does not come up.

    The kernel kills it when the process that forked it ends, which does not outlast the sandbox.
    """

    def __init__(self, settings: IngestSettings, forks: Forks) -> None:
        self._settings = settings
        self.items = 0
        """How many items it was given."""
        self.is_spent = False
        """Whether it must not be given another."""
        self.item_s = 0.0
        """Processor time that the last item took, or took until it was last seen, seconds."""
        self._socket, theirs = socket.socketpair()
        self._status, status = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(TICK_S)
        self._pid: int | None = None
        self._code: int | None = None
        try:
            with theirs, status:
                forks.begin(theirs, status)
            self._pid = self._read_status(_START_TIMEOUT_S)
            refusal = wire.receive_greeting(self._socket, _until(time.monotonic() + _START_TIMEOUT_S))
            if refusal is not None:
                raise SandboxUnavailableError(f"media is decoded in confined processes only: {refusal}")
            self._observed = psutil.Process(self._pid)
            # What a child can write to is its data; the rest of its addresses are libraries, most never read.
            self._limit(resource.RLIMIT_DATA, MAX_DECODE_MEMORY_BYTES - _SHARED_BYTES)
            self._limit(resource.RLIMIT_AS, 2 * MAX_DECODE_MEMORY_BYTES)
            self._limit(resource.RLIMIT_FSIZE, 0)
            self._limit(resource.RLIMIT_CORE, 0)
            self._limit(resource.RLIMIT_NOFILE, 3)
        except (OSError, WireError, psutil.Error) as error:
            self.kill()
            raise SandboxUnavailableError(f"the decoding process ended with {self._code}: {error}") from error
        except SandboxUnavailableError:
            self.kill()
            raise

    def decode(self, data: bytes, plan: Plan, most_s: float, anchors: str | None = None) -> Decoded:
        """Have one item decoded within so many seconds of processor time.

        anchors: PEM of the trust anchors by which its provenance is read; None: it is not.
        Raises DecodeError, for which the media is to blame, with the file's claims where the child is not
        spent, and SandboxUnavailableError (KilledError where
        the child was killed), for which it is not.
        """
        self.items += 1
        held_bytes = 0
        try:
            watch = CpuWatchdog(self._observed, most_s, DECODE_TIMEOUT_S)
            try:
                self._allow_processor_time(most_s + _MAX_PROVENANCE_S)
                wire.send_item(self._socket, data, plan, anchors, watch.look)
                decoded = wire.receive_decoded(self._socket, plan, self._settings.max_pixels, watch.look)
            finally:
                held_bytes, self.item_s = watch.held_bytes, watch.used_s()
            return decoded if anchors is None else replace(decoded, provenance=self._receive_provenance())
        except DecodeError as error:
            # After a failed allocation the heap is as good as full.
            self.is_spent = error.reason in ("out_of_memory", "timeout", "crashed")
            if anchors is not None and not self.is_spent:
                error.claims = self._receive_provenance().claims
            raise
        except HostBusyError as error:
            self.is_spent = True
            raise SandboxUnavailableError(f"the host is too busy to decode: {error}") from error
        except WireError as error:
            self.is_spent = True
            raise DecodeError("crashed", f"the decoder broke the protocol: {error}") from error
        except (OSError, psutil.Error) as error:
            self.is_spent = True
            raise self._death(held_bytes) from error

    def _receive_provenance(self) -> Provenance:
        """Wait for an item's provenance. However its reading ends, the pixels are there."""
        try:
            watch = CpuWatchdog(self._observed, _MAX_PROVENANCE_S, DECODE_TIMEOUT_S)
            return wire.receive_provenance(self._socket, watch.look)
        except (DecodeError, WireError, OSError, psutil.Error) as error:
            self.is_spent = True
            end = error if isinstance(error, DecodeError | WireError) else self._death(0)
            costly = isinstance(end, KilledError) or getattr(end, "reason", "") == "timeout"
            return Provenance(state="too_costly" if costly else "unreadable")

    def kill(self) -> None:
        """End it, and wait until it has."""
        self.is_spent = True
        self._socket.close()
        if self._pid is not None:
            # Its id is its own until the status socket is closed: nobody reaps it before.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            with contextlib.suppress(OSError):
                self._end(_START_TIMEOUT_S)
            self._pid = None
        self._status.close()

    def _read_status(self, timeout_s: float) -> int:
        """Read the next message of its parent: its id, then how it ended. Raises OSError."""
        self._status.settimeout(timeout_s)
        if not (status := self._status.recv(32)):
            raise ConnectionResetError("the process that forks decoding processes has ended")
        return int(status)

    def _end(self, timeout_s: float) -> int:
        """Wait for its end: its exit code, or less than 0 the signal. Raises TimeoutError."""
        if self._code is None:
            try:
                self._code = self._read_status(timeout_s)
            except ConnectionResetError:
                self._code = -signal.SIGKILL  # which the kernel sends it when that process ends
        return self._code

    def _limit(self, limit: int, value: int) -> None:
        resource.prlimit(self._observed.pid, limit, (value, value))

    def _allow_processor_time(self, seconds: float) -> None:
        # In case nobody comes to look: RLIMIT_CPU counts whole seconds from the process's start, so each
        # item moves it on.
        soft = int(used_s(self._observed) + seconds) + 1
        resource.prlimit(self._observed.pid, resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))

    def _death(self, held_bytes: int) -> DecodeError | KilledError:
        try:
            code = self._end(1.0)
        except TimeoutError:
            return DecodeError("crashed", "the decoder closed its connection")
        if code == -signal.SIGXCPU:
            return DecodeError("timeout", "the decoder used up its processor time")
        if code < 0 and -code not in _OWN_SIGNALS:
            return KilledError(-code, held_bytes)
        return DecodeError("crashed", f"the decoder ended with {code}")


def most_processor_s(data: bytes) -> float:
    """Return the processor time that an item has, seconds: a HEIF of 50 megapixels twice that of others.

    At 10 bits a channel it takes 5 to 7.
    """
    return MAX_DECODE_PROCESSOR_S * min(2.0, max(1.0, count_heif_pixels(data) / 25_000_000))


def _until(deadline: float) -> Waiting:
    def look() -> None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no greeting within {_START_TIMEOUT_S:g} s")

    return look


TICK_S = 0.05
"""How often a watch must be asked to look, seconds."""

_MOST_THREADS = 64


class HostBusyError(Exception):
    """The host did not let a decoder work."""


class CpuWatchdog:
    """The watch over one item in a child: whose fault is it that it takes long, the media's or the host's?

    Media is blamed for processor time that its decoder used, and for a decoder that sleeps though nothing is
    to be waited for. Not for time that passed while the decoder was ready to run (a busy host), stopped, or
    waiting for a disk; nor for time in which this process did not come to look. While a decoder is given a
    processor now and then, however seldom, its time is waited for.
    """

    def __init__(self, child: psutil.Process, processor_s: float, timeout_s: float) -> None:
        self._child = child
        self._processor_s, self._timeout_s = processor_s, timeout_s
        self._began_s = self._used_s = used_s(child)
        self._looked = time.monotonic()
        self._still_s = self._asleep_s = 0.0
        self.held_bytes = 0
        """The most memory that the child was seen to hold, bytes."""

    def look(self) -> None:
        """Look at the child, if a tick has passed.

        Raises DecodeError: timeout (its processor time is used up, or it sleeps), crashed (threads without
        end); HostBusyError where it stood still for long by no fault of the media.
        """
        now = time.monotonic()
        if now - self._looked < TICK_S:
            return
        # No more than two ticks: while this process itself was stopped, nobody could have answered it.
        passed_s, self._looked = min(now - self._looked, 2 * TICK_S), now
        try:
            used, self._used_s = self._used_s, used_s(self._child)
            self.held_bytes = max(self.held_bytes, self._child.memory_info().rss)
            threads = self._child.threads()
        except psutil.Error:
            return  # it has ended, as its socket is about to tell
        self._still_s = self._still_s + passed_s if self._used_s == used else 0.0
        if self._still_s and all(_sleeps(thread.id) for thread in threads):
            self._asleep_s += passed_s
        self._judge(len(threads))

    def used_s(self) -> float:
        """Processor time of the item so far, or until its child was last seen, seconds."""
        with contextlib.suppress(psutil.Error):
            self._used_s = used_s(self._child)
        return self._used_s - self._began_s

    def _judge(self, threads: int) -> None:
        if self._used_s - self._began_s > self._processor_s:
            raise DecodeError("timeout", "the decoder used up its processor time")
        if threads > _MOST_THREADS:
            raise DecodeError("crashed", f"the decoder started {threads} threads")
        if self._asleep_s >= self._timeout_s:
            raise DecodeError("timeout", f"the decoder slept for {self._asleep_s:.0f} s")
        if self._still_s >= self._timeout_s:
            raise HostBusyError(f"the decoder got no processor for {self._still_s:.0f} s")


def _sleeps(thread_id: int) -> bool:
    try:
        return bool(psutil.Process(thread_id).status() in (psutil.STATUS_SLEEPING, psutil.STATUS_IDLE))
    except psutil.Error:
        return False  # it did something: it ended


def used_s(process: psutil.Process) -> float:
    """Processor time of a process so far, seconds. Raises psutil.Error."""
    times = process.cpu_times()
    return float(times.user + times.system)

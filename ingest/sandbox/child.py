"""One decoding child (`python -m ingest`): its start, what it is held to from outside, and its end.

A child inherits the socket to it and nothing else: no environment, no open file, no terminal; the signals
that a terminal or a service manager sends to all processes are blocked before it begins. Its limits are
set here, before it gets any media, and it has no system call left to lift them.
"""

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil

from ingest.records import Decoded, Plan
from ingest.sandbox import wire
from ingest.sandbox.decode import DecodeError
from ingest.sandbox.framing import Waiting, WireError
from ingest.sandbox.watch import TICK_S, HostBusyError, Watch, used_s
from ingest.settings import IngestSettings

MAX_DECODE_MEMORY_BYTES = 2_147_483_648
"""Address space of one child: what is loaded, and a picture of 64 million pixels (192 MB) several times."""
MAX_DECODE_PROCESSOR_S = 5
"""Processor time for one item: what takes longer would hold up the stream, or is made to."""
DECODE_TIMEOUT_S = 20.0
"""Wall time after which a sleeping decoder is ended, or a busy host reported."""
_START_TIMEOUT_S = 60.0
# One thread each: thread pools take address space, and the children are what scales.
_ENVIRONMENT = {
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
}
_BLOCKED_SIGNALS = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGTSTP,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
# What a process that has no system call to send signals can only get by its own doing.
_OWN_SIGNALS = (
    signal.SIGSEGV,
    signal.SIGBUS,
    signal.SIGILL,
    signal.SIGFPE,
    signal.SIGTRAP,
    signal.SIGABRT,
    signal.SIGSYS,
    signal.SIGXCPU,
)


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

    The kernel kills it when the thread that made it ends.
    """

    def __init__(self, settings: IngestSettings) -> None:
        self._settings = settings
        self.items = 0
        """How many items it was given."""
        self.is_spent = False
        """Whether it must not be given another."""
        self._socket, theirs = socket.socketpair()
        self._socket.settimeout(TICK_S)
        with theirs:
            self._process = self._start(theirs)
        try:
            refusal = wire.receive_greeting(self._socket, _until(time.monotonic() + _START_TIMEOUT_S))
            if refusal is not None:
                raise SandboxUnavailableError(f"media is decoded in confined processes only: {refusal}")
            self._observed = psutil.Process(self._process.pid)
            self._limit(resource.RLIMIT_AS, MAX_DECODE_MEMORY_BYTES)
            self._limit(resource.RLIMIT_FSIZE, 0)
            self._limit(resource.RLIMIT_CORE, 0)
            self._limit(resource.RLIMIT_NOFILE, 3)
        except (OSError, WireError, psutil.Error) as error:
            self.kill()
            raise SandboxUnavailableError(
                f"the decoding process ended with {self._process.returncode}: {error}"
            ) from error
        except SandboxUnavailableError:
            self.kill()
            raise

    def decode(self, data: bytes, plan: Plan) -> Decoded:
        """Have one item decoded.

        Raises DecodeError, for which the media is to blame, and SandboxUnavailableError (KilledError where
        the child was killed), for which it is not.
        """
        self.items += 1
        held_bytes = 0
        try:
            watch = Watch(self._observed, MAX_DECODE_PROCESSOR_S, DECODE_TIMEOUT_S)
            try:
                self._allow_processor_time(MAX_DECODE_PROCESSOR_S)
                wire.send_item(self._socket, data, plan, watch.look)
                return wire.receive_decoded(self._socket, plan, self._settings.max_pixels, watch.look)
            finally:
                held_bytes = watch.held_bytes
        except DecodeError as error:
            # After a failed allocation the heap is as good as full.
            self.is_spent = error.reason in ("out_of_memory", "timeout", "crashed")
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

    def kill(self) -> None:
        """End it."""
        self.is_spent = True
        self._socket.close()
        self._process.kill()
        self._process.wait()

    def _start(self, theirs: socket.socket) -> "subprocess.Popen[bytes]":
        charge = wire.Charge(parent=os.getpid(), max_pixels=self._settings.max_pixels)
        # A child begins with the mask of the thread that starts it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED_SIGNALS)
        try:
            return subprocess.Popen(  # noqa: S603 - our own module, our own interpreter
                [*command(), charge.model_dump_json()],
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd=Path(__file__).parents[2],
                env=_ENVIRONMENT,
                start_new_session=True,
            )
        except OSError as error:
            self._socket.close()
            raise SandboxUnavailableError(f"cannot start a decoding process: {error}") from error
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _limit(self, limit: int, value: int) -> None:
        resource.prlimit(self._process.pid, limit, (value, value))

    def _allow_processor_time(self, seconds: int) -> None:
        # RLIMIT_CPU counts whole seconds from the process's start, so each item moves it on.
        soft = int(used_s(self._observed) + seconds) + 1
        resource.prlimit(self._process.pid, resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))

    def _death(self, held_bytes: int) -> DecodeError | KilledError:
        code = None
        with contextlib.suppress(subprocess.TimeoutExpired):
            code = self._process.wait(1.0)
        if code is None:
            return DecodeError("crashed", "the decoder closed its connection")
        if code == -signal.SIGXCPU:
            return DecodeError("timeout", "the decoder used up its processor time")
        if code < 0 and -code not in _OWN_SIGNALS:
            return KilledError(-code, held_bytes)
        return DecodeError("crashed", f"the decoder ended with {code}")


def command() -> list[str]:
    """The command line of a child, without its charge.

    It has to be started in the folder that this package lies in, from which `-m` imports first. With -P it
    would import what is installed, which is another tree's where this one is on PYTHONPATH alone.
    """
    return [sys.executable, "-E", "-s", "-m", "ingest"]


def _until(deadline: float) -> Waiting:
    def look() -> None:
        if time.monotonic() > deadline:
            raise TimeoutError(f"no greeting within {_START_TIMEOUT_S:g} s")

    return look

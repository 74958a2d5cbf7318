"""Watches one item being decoded, to tell whose fault it is that it takes long: the media's or the host's.

Media is blamed for processor time that its decoder used, and for a decoder that sleeps though nothing is
to be waited for. Not for time that passed while the decoder was ready to run (a busy host), stopped, or
waiting for a disk; nor for time in which this process did not come to look.
"""

import time

import psutil

from ingest.sandbox.decode import DecodeError

TICK_S = 0.05
"""How often a watch must be asked to look, seconds."""

# The kernel ends the child by itself (RLIMIT_CPU, whole seconds); what is left is one that blocks its signal.
_PROCESSOR_GRACE_S = 2.0
_MOST_THREADS = 64


class HostBusyError(Exception):
    """The host did not let a decoder work."""


class Watch:
    """The watch over one item in a child."""

    def __init__(self, child: psutil.Process, processor_s: float, timeout_s: float) -> None:
        self._child = child
        self._processor_s, self._timeout_s = processor_s, timeout_s
        self._began_s = self._used_s = used_s(child)
        self._looked = time.monotonic()
        self._waited_s = self._asleep_s = 0.0
        self.held_bytes = 0
        """The most memory that the child was seen to hold, bytes."""

    def look(self) -> None:
        """Look at the child, if a tick has passed.

        Raises DecodeError: timeout (its processor time is used up, or it sleeps), crashed (threads without
        end); HostBusyError where the wall time is over by no fault of the media.
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
        self._waited_s += passed_s
        if self._used_s == used and all(_sleeps(thread.id) for thread in threads):
            self._asleep_s += passed_s
        self._judge(len(threads))

    def _judge(self, threads: int) -> None:
        if self._used_s - self._began_s > self._processor_s + _PROCESSOR_GRACE_S:
            raise DecodeError("timeout", "the decoder used up its processor time")
        if threads > _MOST_THREADS:
            raise DecodeError("crashed", f"the decoder started {threads} threads")
        if self._waited_s < self._timeout_s:
            return
        if self._asleep_s > self._waited_s / 2:
            raise DecodeError("timeout", f"the decoder slept for {self._asleep_s:.0f} s")
        raise HostBusyError(
            f"in {self._waited_s:.0f} s the decoder got {self._used_s - self._began_s:.1f} s of a processor"
        )


def _sleeps(thread_id: int) -> bool:
    try:
        return bool(psutil.Process(thread_id).status() in (psutil.STATUS_SLEEPING, psutil.STATUS_IDLE))
    except psutil.Error:
        return False  # it did something: it ended


def used_s(process: psutil.Process) -> float:
    """Processor time of a process so far, seconds. Raises psutil.Error."""
    times = process.cpu_times()
    return float(times.user + times.system)

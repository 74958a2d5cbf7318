"""A decoding child of the sandbox: items in, crops out, on the socket that is its standard input.

Started by ingest.sandbox alone. It gives itself limits before it touches the first item: address
space, processor time an item, no file to write, no core, no new descriptors to speak of, no way to
gain privileges; and it dies with its parent.
"""

import contextlib
import ctypes
import os
import resource
import signal
import socket
import sys

# Decoders are loaded before the limits, which leave no room to open their files.
from PIL import AvifImagePlugin, Image

from ingest import wire
from ingest.decode import DecodeError
from ingest.extract import extract
from ingest.records import MediaPlan

_PR_SET_PDEATHSIG = 1
_PR_SET_NO_NEW_PRIVS = 38
_MOST_DESCRIPTORS = 16


def main() -> None:
    """Serve items until the parent is gone or a limit is hit."""
    limits = wire.Limits.model_validate_json(sys.argv[1])
    with socket.socket(fileno=0) as parent:
        _warm_up()
        _confine(limits)
        wire.send_ready(parent)
        while (item := wire.receive_item(parent)) is not None:
            _allow_processor_time(limits.processor_s)
            try:
                wire.send_decoded(parent, extract(*item, limits.max_pixels))
            except DecodeError as error:
                wire.send_rejection(parent, error)
            except MemoryError:
                wire.send_rejection(
                    parent, DecodeError("out_of_memory", "the media does not fit the memory limit")
                )


def _warm_up() -> None:
    Image.init()
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    blank = "524946461a000000574542505650384c0d0000002f0000001007101111888808"
    with contextlib.suppress(DecodeError):
        extract(bytes.fromhex(blank), MediaPlan(), 1)


def _confine(limits: wire.Limits) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    if os.getppid() != limits.parent:  # it died before the line above
        raise SystemExit(0)
    for limit, value in (
        (resource.RLIMIT_AS, limits.memory_bytes),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, _MOST_DESCRIPTORS),
    ):
        resource.setrlimit(limit, (value, value))


def _allow_processor_time(seconds: int) -> None:
    # Wall time alone would punish an item for a busy host. RLIMIT_CPU counts from the process's start,
    # so each item moves it on.
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime + seconds) + 1
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))


if __name__ == "__main__":
    main()

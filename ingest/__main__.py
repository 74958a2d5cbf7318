"""A decoding child of the sandbox: items in, crops out, on the socket that is its standard input.

Started by `child.py` alone, which sets its limits from outside. Before it takes the first item it
loads and warms up all decoders, so that it needs no file any more, and then gives up for good what decoding
does not need: other system calls, privileges, being looked into. It dies with its parent.
"""

import contextlib
import ctypes
import importlib
import os
import signal
import socket
import sys
from pathlib import Path

from PIL import AvifImagePlugin, Image

from ingest.records import MediaPlan
from ingest.sandbox import seccomp, wire
from ingest.sandbox.decode import DecodeError
from ingest.sandbox.extract import extract

# What decoders load by need, for some media alone, when no file can be opened any more: FFmpeg's subtitle
# streams beside the pictures, Pillow's LAB pictures.
_LOADED_BY_NEED = ("av.subtitles.codeccontext", "av.subtitles.stream", "PIL.ImageCms")
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4


def main() -> None:
    """Serve items until the parent is gone or a limit is hit."""
    charge = wire.Charge.model_validate_json(sys.argv[1])
    with socket.socket(fileno=0) as parent:
        _warm_up()
        try:
            _confine(charge.parent)
        except seccomp.SeccompError as error:
            wire.send_greeting(parent, str(error))
            return
        wire.send_greeting(parent, None)
        while (item := wire.receive_item(parent)) is not None:
            try:
                wire.send_decoded(parent, extract(*item, charge.max_pixels))
            except DecodeError as error:
                wire.send_rejection(parent, error)
            except MemoryError:
                wire.send_rejection(
                    parent, DecodeError("out_of_memory", "the media does not fit the memory limit")
                )


def _warm_up() -> None:
    Image.init()
    for name in _LOADED_BY_NEED:
        importlib.import_module(name)
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    blank = "524946461a000000574542505650384c0d0000002f0000001007101111888808"
    with contextlib.suppress(DecodeError):
        extract(bytes.fromhex(blank), MediaPlan(), 1)


def _confine(parent: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the line above
        raise SystemExit(0)
    # Where memory runs out, the kernel takes a child, whose item is tried again, and not the worker.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    # No debugger, no core: other processes of this user cannot read the media in this one's memory.
    libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    seccomp.confine()


if __name__ == "__main__":
    main()

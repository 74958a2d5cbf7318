"""The process that forks the sandbox's decoding children, and a child's work: items in, crops out.

Started by `forks.py` alone. It loads and warms up all decoders, so that a child needs no file any more. A
child gives up for good what decoding does not need before it takes the first item: other system calls,
privileges, being looked into; `child.py` sets its limits from outside. Both die with their parents.
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
from ingest.sandbox import forks, seccomp, wire
from ingest.sandbox.decode import DecodeError
from ingest.sandbox.extract import extract
from ingest.sandbox.provenance import read_provenance, warm_up

# What decoders load by need, for some media alone, when no file can be opened any more: FFmpeg's subtitle
# streams beside the pictures, Pillow's LAB pictures, text of EXIF.
_LOADED_BY_NEED = (
    *("av.subtitles.codeccontext", "av.subtitles.stream", "PIL.ImageCms"),
    *("encodings.utf_16_le", "encodings.utf_16_be"),
)
_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4


def main() -> None:
    """Fork children until the parent is gone, or has no more use for them."""
    parent_id, max_pixels = map(int, sys.argv[1:])
    with socket.socket(fileno=0) as control:
        _die_with(parent_id)
        _warm_up()
        try:
            _keep_apart()
        except seccomp.SeccompError as error:
            refusal = str(error)
            forks.serve(control, lambda parent: wire.send_greeting(parent, refusal))
            return
        own = os.getpid()
        forks.serve(control, lambda parent: decode_items(parent, own, max_pixels))


def decode_items(parent: socket.socket, forked_by: int, max_pixels: int) -> None:
    """Be a child: confined before the first item, it serves until the parent is gone or a limit is hit."""
    _die_with(forked_by)
    try:
        seccomp.confine()
    except seccomp.SeccompError as error:
        wire.send_greeting(parent, str(error))
        return
    wire.send_greeting(parent, None)
    while (item := wire.receive_item(parent)) is not None:
        data, plan, anchors = item
        try:
            wire.send_decoded(parent, extract(data, plan, max_pixels))
        except DecodeError as error:
            wire.send_rejection(parent, error)
        except MemoryError:
            wire.send_rejection(parent, DecodeError("out_of_memory", "the media exceeds the memory limit"))
        if anchors is not None:
            wire.send_provenance(parent, read_provenance(data, anchors))


def _warm_up() -> None:
    Image.init()
    for name in _LOADED_BY_NEED:
        importlib.import_module(name)
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1
    blank = "524946461a000000574542505650384c0d0000002f0000001007101111888808"
    with contextlib.suppress(DecodeError):
        extract(bytes.fromhex(blank), MediaPlan(), 1)
    warm_up()


def _die_with(parent: int) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it died before the line above
        os._exit(0)


def _keep_apart() -> None:
    """Give up all rights that forking does not need; children inherit it. Raises SeccompError."""
    # Where memory runs out, the kernel takes a child, whose item is tried again, and not the worker.
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    # No debugger, no core: other processes of this user cannot read the media in a child's memory.
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)
    seccomp.confine_forking()


if __name__ == "__main__":
    main()

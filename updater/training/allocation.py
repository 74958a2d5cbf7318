"""How a process that trains on a CPU gets its memory from the system: once, not anew for each batch."""

import ctypes
import functools

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST = 2**30


@functools.cache
def keep_freed_memory() -> bool:
    """Have glibc keep what is freed, up to 1 GiB, for what is asked for next; return whether it will.

    By default it hands blocks of some MiB back to the system, which fills them with zeros when they are
    asked for again: with the activations of a batch, a third of the time of a training step. For the whole
    process. False without glibc, where nothing changes.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, _LARGEST) and mallopt(_TRIM_THRESHOLD, _LARGEST))

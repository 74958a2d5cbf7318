"""A filter of system calls for a decoding child, held by the kernel (seccomp(2), mode 2, classic BPF).

What is not listed fails with EPERM, so that a library's harmless question (how many processors are
there?) gets its refusal and goes on. Nothing listed opens, connects, starts a program or a process,
sends a signal, or reaches into another process; memory can never be made executable. Threads may be
started: libde265 decodes HEIC in one. Another instruction set's calls, which bear other numbers
(32-bit, x32), end the process.
"""

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Sequence
from typing import NamedTuple

# fmt: off
# Numbers on x86-64 and on aarch64 (the kernel's asm/unistd.h of each).
_ALLOWED = {
    "read": (0, 63), "write": (1, 64), "close": (3, 57), "recvfrom": (45, 207), "sendto": (44, 206),
    "brk": (12, 214), "munmap": (11, 215), "mremap": (25, 216), "madvise": (28, 233),
    "futex": (202, 98), "sched_yield": (24, 124), "sched_getaffinity": (204, 123),
    "set_robust_list": (273, 99), "rseq": (334, 293), "rt_sigprocmask": (14, 135),
    "restart_syscall": (219, 128), "getpid": (39, 172), "gettid": (186, 178),
    "clock_gettime": (228, 113), "gettimeofday": (96, 169), "getrandom": (318, 278),
    "exit": (60, 93), "exit_group": (231, 94),
}
# What the process that forks has no use for, once all is loaded; None: there is no such call.
_REACHING_OUT = {
    "open": (2, None), "openat": (257, 56), "openat2": (437, 437), "mount": (165, 40),
    "socket": (41, 198), "connect": (42, 203), "bind": (49, 200),
    "execve": (59, 221), "execveat": (322, 281), "ptrace": (101, 117),
    "process_vm_readv": (310, 270), "process_vm_writev": (311, 271),
    "unshare": (272, 97), "setns": (308, 268), "io_uring_setup": (425, 425), "bpf": (321, 280),
}
# fmt: on
_MMAP, _MPROTECT, _CLONE, _CLONE3, _SECCOMP = (9, 222), (10, 226), (56, 220), (435, 435), (317, 277)
_MACHINES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000

# From linux/sched.h: VM, FS, FILES, SIGHAND, THREAD, SYSVSEM, SETTLS, PARENT_SETTID, CHILD_CLEARTID, which is
# what glibc starts a thread with. A new process, and a new namespace, has other flags.
_THREAD_FLAGS = 0x003D0F00
_PROT_EXEC = 4

# linux/filter.h, linux/seccomp.h
_LOAD, _JUMP_EQUAL, _JUMP_NOT_BELOW, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_AT_NUMBER, _AT_ARCH, _AT_FIRST_ARGUMENT = 0, 4, 16
_KILL_PROCESS, _ALLOW, _ERRNO = 0x80000000, 0x7FFF0000, 0x00050000
_SET_MODE_FILTER, _FLAG_TSYNC = 1, 1
_PR_SET_NO_NEW_PRIVS = 38


class SeccompError(Exception):
    """The kernel does not hold this process to a filter of system calls."""


class Instruction(NamedTuple):
    """One instruction of classic BPF (struct sock_filter): jumps count from the next instruction."""

    code: int
    if_true: int
    if_false: int
    k: int


def program(machine: str) -> tuple[Instruction, ...]:
    """Write the filter for a machine, "x86_64" or "aarch64". Raises SeccompError for another."""
    if machine not in _MACHINES or sys.byteorder != "little":
        raise SeccompError(f"there is no list of system calls for {machine}")
    column = list(_MACHINES).index(machine)
    lines = [
        Instruction(_LOAD, 0, 0, _AT_ARCH),
        Instruction(_JUMP_EQUAL, 1, 0, _MACHINES[machine]),
        Instruction(_RETURN, 0, 0, _KILL_PROCESS),
        Instruction(_LOAD, 0, 0, _AT_NUMBER),
    ]
    if machine == "x86_64":
        lines += [Instruction(_JUMP_NOT_BELOW, 0, 1, _X32_BIT), Instruction(_RETURN, 0, 0, _KILL_PROCESS)]
    for numbers in _ALLOWED.values():
        lines += _answer(numbers[column], _ALLOW)
    for numbers in (_MMAP, _MPROTECT):
        executable = Instruction(_JUMP_ANY_BIT, 0, 1, _PROT_EXEC)
        lines += _check(numbers[column], 2, executable, if_true=_refusal(errno.EPERM), if_false=_ALLOW)
    thread = Instruction(_JUMP_EQUAL, 0, 1, _THREAD_FLAGS)
    lines += _check(_CLONE[column], 0, thread, if_true=_ALLOW, if_false=_refusal(errno.EPERM))
    # Its flags lie in memory, where a filter cannot look: glibc falls back to clone.
    lines += _answer(_CLONE3[column], _refusal(errno.ENOSYS))
    return (*lines, Instruction(_RETURN, 0, 0, _refusal(errno.EPERM)))


def forking_program(machine: str) -> tuple[Instruction, ...]:
    """Write the filter of the process that forks: what reaches out fails, all else passes.

    Raises SeccompError for another machine than `program` knows.
    """
    lines = list(program(machine)[: 6 if machine == "x86_64" else 4])
    for numbers in _REACHING_OUT.values():
        if (number := numbers[list(_MACHINES).index(machine)]) is not None:
            lines += _answer(number, _refusal(errno.EPERM))
    return (*lines, Instruction(_RETURN, 0, 0, _ALLOW))


def confine() -> None:
    """Hold all threads of this process, and what they start, to the filter of a child; for good.

    It needs no privilege, and gives up ever gaining one. Raises SeccompError with one line.
    """
    _hold(program(platform.machine()))


def confine_forking() -> None:
    """Hold this process, and what it forks, to the filter of one that forks; as `confine`."""
    _hold(forking_program(platform.machine()))


def _hold(lines: Sequence[Instruction]) -> None:
    machine = platform.machine()
    code = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *line) for line in lines))
    # struct sock_fprog: the count, padding, the address.
    filter_ = ctypes.create_string_buffer(struct.pack("@HP", len(lines), ctypes.addressof(code)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        raise SeccompError(f"no_new_privs is refused: {os.strerror(ctypes.get_errno())}")
    number = _SECCOMP[list(_MACHINES).index(machine)]
    # A positive result is the id of a thread that could not be held to it.
    if result := libc.syscall(number, _SET_MODE_FILTER, _FLAG_TSYNC, filter_):
        why = os.strerror(ctypes.get_errno()) if result < 0 else f"thread {result} stays outside"
        raise SeccompError(f"the kernel refuses a filter of system calls (seccomp): {why}")


def _answer(number: int, result: int) -> list[Instruction]:
    """Decide a call by its number alone."""
    return [Instruction(_JUMP_EQUAL, 0, 1, number), Instruction(_RETURN, 0, 0, result)]


def _check(number: int, place: int, test: Instruction, *, if_true: int, if_false: int) -> list[Instruction]:
    """Decide a call by the lower half of the argument at a place."""
    return [
        Instruction(_JUMP_EQUAL, 0, 4, number),
        Instruction(_LOAD, 0, 0, _AT_FIRST_ARGUMENT + 8 * place),
        test,
        Instruction(_RETURN, 0, 0, if_true),
        Instruction(_RETURN, 0, 0, if_false),
    ]


def _refusal(number: int) -> int:
    return _ERRNO | number

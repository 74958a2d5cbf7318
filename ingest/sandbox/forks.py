"""Where decoding children come from: a process that has all decoders loaded, and forks one when it is asked.

A start of Python with its decoders takes a second of a processor; a fork takes milliseconds. The process
(`python -m ingest`) never sees media: it gets two sockets for each child, and tells on the second one the
child's id and, later, how it ended. It reaps a child once that socket was closed, so that an id means the
same process for as long as somebody may use it.
"""

import contextlib
import os
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import NoReturn

# One thread each: thread pools take address space, and the children are what scales.
_ENVIRONMENT = {
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
    # A picture's memory goes back with the picture; by itself the threshold grows until blocks are kept.
    "MALLOC_MMAP_THRESHOLD_": "1048576",
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
# Children of one process share its addresses in memory, which nobody shall learn by trying for long.
_MOST_CRASHES = 10
_END_TIMEOUT_S = 10.0


class Forks:
    """The worker's side: the process that forks, started with the first child and where it has ended.

    The kernel kills it when the thread that started it ends, so that is one of its own, which lasts until
    `close`. It inherits the socket to it and nothing else: no environment, no open file, no terminal; the
    signals that a terminal or a service manager sends to all processes are blocked before it begins.
    """

    def __init__(self, max_pixels: int) -> None:
        self._max_pixels = max_pixels
        self._asked: queue.SimpleQueue[tuple[list[int], Future[None]] | None] = queue.SimpleQueue()
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._retired: list[subprocess.Popen[bytes]] = []
        self._crashes = 0
        self._thread = threading.Thread(target=self._serve, name="sandbox-forks", daemon=True)
        self._thread.start()

    def begin(self, items: socket.socket, status: socket.socket) -> None:
        """Have a child forked that serves one socket, and is told of on the other. Raises OSError."""
        begun: Future[None] = Future()
        self._asked.put(([items.fileno(), status.fileno()], begun))
        begun.result()

    def count_crash(self) -> None:
        """A child was ended by what it decoded, or may have been taken over by it."""
        self._crashes += 1

    def close(self) -> None:
        """End the process. Every child must have ended before."""
        self._asked.put(None)
        self._thread.join()

    def _serve(self) -> None:
        while (request := self._asked.get()) is not None:
            descriptors, future = request
            try:
                self._fork(descriptors)
                future.set_result(None)
            except Exception as error:
                future.set_exception(error)
        self._retire()
        for process in self._retired:
            try:
                process.wait(_END_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _fork(self, descriptors: list[int]) -> None:
        if self._crashes >= _MOST_CRASHES:
            self._retire()
        self._retired = [process for process in self._retired if process.poll() is None]
        for control in (self._control, None):
            with contextlib.suppress(ConnectionError):
                socket.send_fds(control or self._start(), [b"\0"], descriptors)
                return
        raise ConnectionResetError("the process that forks decoding processes has ended")

    def _start(self) -> socket.socket:
        self._retire()
        self._crashes = 0
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # A process begins with the mask of the thread that starts it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _BLOCKED_SIGNALS)
        try:
            with theirs:
                self._process = subprocess.Popen(  # noqa: S603 - our own module, our own interpreter
                    [*command(), str(os.getpid()), str(self._max_pixels)],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    cwd=Path(__file__).parents[2],
                    env=_ENVIRONMENT,
                    start_new_session=True,
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return self._control

    def _retire(self) -> None:
        """Let the process end, once its last child has."""
        if self._control is not None:
            self._control.close()
        if self._process is not None:
            self._retired.append(self._process)
        self._control = self._process = None


def command() -> list[str]:
    """The command line of the process that forks, without the id of its parent and the limit of pixels.

    It has to be started in the folder that this package lies in, from which `-m` imports first. With -P it
    would import what is installed, which is another tree's where this one is on PYTHONPATH alone.
    """
    return [sys.executable, "-E", "-s", "-m", "ingest"]


def serve(control: socket.socket, run: Callable[[socket.socket], None]) -> None:
    """The other side, in the process that forks: a child for each pair of sockets, until told to end."""
    waiting, children, statuses = select.poll(), dict[int, int](), dict[int, int]()
    waiting.register(control, select.POLLIN)
    ended = False
    while children or not ended:
        for descriptor, _ in waiting.poll():
            if descriptor == control.fileno():
                message, passed, _, _ = socket.recv_fds(control, 1, 2)
                if not message:
                    waiting.unregister(control)
                    ended = True
                    continue
                items, status = passed
                if (pid := os.fork()) == 0:
                    _become(items, run)
                os.close(items)
                children[status], watched = pid, os.pidfd_open(pid)
                statuses[watched] = status
                _say(status, pid)
                waiting.register(status, 0)  # which is to say: POLLHUP
                waiting.register(watched, select.POLLIN)
            elif descriptor in statuses:
                end = os.waitid(os.P_PIDFD, descriptor, os.WEXITED | os.WNOWAIT)
                assert end is not None
                _say(statuses.pop(descriptor), end.si_status * (1 if end.si_code == os.CLD_EXITED else -1))
                waiting.unregister(descriptor)
                os.close(descriptor)
            elif descriptor in children:
                pid = children.pop(descriptor)
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
                for watched in [child for child, status in statuses.items() if status == descriptor]:
                    del statuses[watched]
                    waiting.unregister(watched)
                    os.close(watched)
                waiting.unregister(descriptor)
                os.close(descriptor)


def _say(status: int, number: int) -> None:
    with contextlib.suppress(ConnectionError):
        os.write(status, str(number).encode())


def _become(items: int, run: Callable[[socket.socket], None]) -> NoReturn:
    """Be a child that has the one socket as its standard input, and a session of its own."""
    code = 1
    try:
        os.setsid()
        os.dup2(items, 0)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        with socket.socket(fileno=0) as parent:
            run(parent)
        code = 0
    finally:
        os._exit(code)

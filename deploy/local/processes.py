"""Child processes of the local stack: started apart from the terminal, ended by identity only.

A process is known by its id *and* the instant it started. An id that the kernel gave to someone
else in the meantime has another start time, so a stranger is never signalled.
"""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from secrets import randbelow
from typing import Protocol

import httpx
import psutil

_POLL_S = 0.05
# The kernel counts from boot, and the instant of boot moves when the clock is corrected.
_CLOCK_CORRECTION_S = 2.0
_LINES_SHOWN = 20
_LAST_WORDS_S = 2.0
# Below the range from which Linux takes the ports of outgoing connections, so that none of those
# sits on a port between the moment it was found free and the moment a server binds it.
_FREE_PORTS = range(20_000, 32_000)

SUPERVISOR_URL = "SUPERVISOR_SERVER_URL"
"""The variable by which supervisord's processes know where it listens."""


class StackError(Exception):
    """Something of the local stack cannot run; fatal. The first line names it, the others give the reason."""


class PortTakenError(StackError):
    """Someone else listens on the port that was asked for."""


class ProcessDiedError(StackError):
    """The process ended before it was ready."""


class ProcessNotReadyError(StackError):
    """The process runs but did not become ready in time."""


@dataclass(frozen=True)
class Daemon:
    """A process that this package started, the leader of its own session.

    created_s is the start time in seconds since the epoch as the kernel tells it. handle is there
    only in the process that started the child, whose duty it is to reap it.
    """

    name: str
    pid: int
    created_s: float
    log: Path
    handle: "subprocess.Popen[bytes] | None" = field(default=None, compare=False, repr=False)


def start(
    name: str, command: Sequence[str | Path], *, log: Path, environment: Mapping[str, str], folder: Path
) -> Daemon:
    """Start a command in a session of its own; stdout and stderr are appended to `log`.

    `environment` is the child's whole environment and `folder` its working folder. A Ctrl-C in the
    terminal does not reach the child: who started it ends it.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        handle = subprocess.Popen(  # noqa: S603 - the command is the stack's own
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd=folder,
            start_new_session=True,
        )
    # Until it is waited for, an ended child stays in the process table, so this cannot fail.
    return Daemon(name, handle.pid, psutil.Process(handle.pid).create_time(), log, handle)


class Launch(Protocol):
    """How a part of the stack is started: `start`, or a supervisor's `launch`."""

    def __call__(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        log: Path,
        environment: Mapping[str, str],
        folder: Path,
    ) -> Daemon:
        """Start a command; see `start`."""


def alive(child: Daemon) -> bool:
    """Whether this very process still runs; False for a zombie and for a stranger with its id."""
    if child.handle is not None and child.handle.poll() is not None:
        return False
    return _running(_find_process(child))


def stop(child: Daemon, timeout_s: float = 15.0, url: str | None = None) -> None:
    """End the child and its `session`: SIGTERM to the child, SIGKILL to the rest.

    The child passes its end on to its own children; those that outlive it or `timeout_s` are
    killed. Does nothing where the child is gone, or where its id belongs to someone else by now.
    """
    members = session(child, url)
    leader = _find_process(child)
    if leader is not None:
        _signal(leader, signal.SIGTERM)
        _wait(lambda: not alive(child), timeout_s)
    for process in members | session(child, url):
        if _running(process):
            _signal(process, signal.SIGKILL)
    _wait(lambda: not any(_running(process) for process in members), timeout_s)
    if child.handle is not None:
        child.handle.wait(timeout_s)


def session(child: Daemon, url: str | None = None) -> set[psutil.Process]:
    """The child, where it runs, and all that it started, also where it has ended and they have not.

    They are known by their session, unless the child's id belongs to a stranger. Those that began a session
    of their own are known by `url`, which supervisord gives to each of its processes. This one is left out.
    """
    ours = not psutil.pid_exists(child.pid) or _find_process(child) is not None
    since, members = child.created_s - _CLOCK_CORRECTION_S, set()
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and (
                (ours and os.getsid(process.pid) == child.pid and process.create_time() > since)
                or (url and process.environ().get(SUPERVISOR_URL) == url)
            ):
                members.add(process)
        except (psutil.Error, OSError):
            continue
    return members


def wait_until(child: Daemon, ready: Callable[[], bool], timeout_s: float) -> None:
    """Wait until `ready()`; raises ProcessDiedError or ProcessNotReadyError with the log's last lines."""
    until = time.monotonic() + timeout_s
    while not ready():
        if not alive(child):
            # Its last words are in the log by the time that it was reaped, whoever's child it is.
            _wait(lambda: child.handle is not None or _find_process(child) is None, _LAST_WORDS_S)
            code = "" if child.handle is None else f" with exit status {child.handle.returncode}"
            raise ProcessDiedError(f"{child.name} ended{code} before it was ready.\n{last_lines(child.log)}")
        if time.monotonic() > until:
            raise ProcessNotReadyError(
                f"{child.name} was not ready within {timeout_s:.0f} s.\n{last_lines(child.log)}"
            )
        time.sleep(_POLL_S)


def answers(address: str) -> bool:
    """Whether an HTTP address of this host answers with success."""
    try:
        # trust_env would send loopback traffic through a proxy that the environment names.
        return httpx.get(address, timeout=5, trust_env=False).is_success
    except httpx.TransportError:
        return False


def last_lines(log: Path, count: int = _LINES_SHOWN) -> str:
    """The last lines of a log under a line that names it; that line alone where it is empty."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    if not lines:
        return f"Its log is empty: {log}"
    return "\n".join([f"The end of {log}:", *(f"  {line[:400]}" for line in lines[-count:])])


def port_is_free(port: int) -> bool:
    """Whether a server could listen on this loopback TCP port now."""
    with socket.socket() as probe:
        # As servers do: a port in TIME_WAIT after the last stack's end is free.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def claim_port(port: int | None) -> int:
    """The given port, or a free one for None; raises PortTakenError."""
    if port is None:
        return free_port()
    if not port_is_free(port):
        raise PortTakenError(f"port {port} on 127.0.0.1 is taken by another process")
    return port


def free_port() -> int:
    """A loopback TCP port that no one listens on."""
    for _ in range(1000):
        port = _FREE_PORTS[randbelow(len(_FREE_PORTS))]
        if port_is_free(port):
            return port
    raise StackError(f"no free TCP port between {_FREE_PORTS[0]} and {_FREE_PORTS[-1]}")


def _find_process(child: Daemon) -> psutil.Process | None:
    try:
        process = psutil.Process(child.pid)
        return process if abs(process.create_time() - child.created_s) < _CLOCK_CORRECTION_S else None
    except psutil.NoSuchProcess:
        return None


def _running(process: psutil.Process | None) -> bool:
    try:
        if process is None or not process.is_running():
            return False
        # A zombie has ended, and where no init reaps orphans it would be waited for in vain; but one
        # whose threads are still on their way out, as a JVM's are, holds its ports.
        return process.status() != psutil.STATUS_ZOMBIE or process.num_threads() > 1
    except psutil.NoSuchProcess:
        return False


def _signal(process: psutil.Process, number: signal.Signals) -> None:
    try:
        process.send_signal(number)  # psutil compares the start time again before it signals
    except psutil.NoSuchProcess:
        return


def _wait(condition: Callable[[], bool], timeout_s: float) -> None:
    until = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < until:
        time.sleep(_POLL_S)


# The kernel's limit of 108 bytes for a socket's path, less its final zero byte.
_SOCKET_PATH_BYTES = 107
# supervisord binds a name with its process id (at most 4194304) first, and then links it.
_LONGEST_SOCKET = "supervisor.sock.4194304"


def socket_folder(folder: Path) -> Path:
    """An empty folder of mode 0700: `folder`/tmp, or one in the temporary folder where that lies too deep."""
    sockets = folder.absolute() / "tmp"
    if len(os.fsencode(sockets / _LONGEST_SOCKET)) > _SOCKET_PATH_BYTES:
        return Path(tempfile.mkdtemp(prefix="forgewatch-"))
    shutil.rmtree(sockets, ignore_errors=True)  # of servers that were killed
    sockets.mkdir(mode=0o700, parents=True)
    return sockets

"""The programs of a stack's supervisor, and which processes ended and why, by supervisord's activity log.

`supervise`: supervisord, which loses lines of its logs where their disk is full, and not its life.
`run`: what a process is before it becomes itself: it waits until its disk has room.
`listen`: supervisord's event listener (https://supervisord.org/events.html). supervisord itself looks at the
exit status only of a process that ran for a while, and a wrong setting ends one at once.
"""

import ctypes
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import psutil

from deploy.local.processes import SUPERVISOR_URL, Daemon, session, stop

ACTIVITY_LOG = "supervisord.log"
"""The name of the activity log, in the folder of the stack's supervisord."""

WRONG_SETTING = "exit status 2"
"""How a process of ours ends that cannot work with its settings: to start it again would change nothing."""

ROOM_BYTES = 2**26
"""A process is started where its disk has as much left."""

_BEGIN = "supervisord started with pid"
_EXIT = re.compile(
    r"^(?P<at>\S+ \S+),\d+ \w+ (?P<kind>exited|stood): (?P<name>\S+) "
    r"\((?P<why>.+?)(?:; (?:not )?expected)?\)$",
    re.MULTILINE,
)
_TIME = "%Y-%m-%d %H:%M:%S"
_POLL_S = 0.5
_STOP_S = 15.0
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Exit:
    """A process ended without being told to, or stood for want of room before it was started again.

    `why` is "exit status N" or "terminated by SIGNAL", or how long it stood.
    """

    name: str
    at: datetime
    why: str
    stood: bool


def exits(activity: str) -> list[Exit]:
    """Every end of a process since the newest start of supervisord, the oldest first."""
    _, _, since = activity.rpartition(_BEGIN)
    ends = [
        Exit(
            end["name"], datetime.strptime(end["at"], _TIME).astimezone(), end["why"], end["kind"] == "stood"
        )
        for end in _EXIT.finditer(since)
    ]
    # What supervisord could not write while the disk was full comes late.
    return sorted(ends, key=lambda end: (end.at, end.stood))


def lack_of_room(folder: Path) -> str | None:
    """Why no process is started in a folder: its disk is full, or nearly; None where it has room."""
    disk = os.statvfs(folder)
    free = 0 if disk.f_files and not disk.f_favail else disk.f_bavail * disk.f_frsize
    if free >= ROOM_BYTES:
        return None
    return f"{free >> 20} MiB are free at {folder}, and {ROOM_BYTES >> 20} MiB are needed"


def supervise(*arguments: str) -> None:
    from supervisor import loggers, supervisord  # on a host with a stack alone; asked for elsewhere too

    # Its own tells of a lost line on stderr, which lies on the same disk, and so it dies.
    loggers.Handler.handleError = lambda handler: None
    supervisord.main(arguments)


def run(activity_log: str, name: str, *command: str) -> None:
    """Become the command once its disk has room; the kernel tells it to end where supervisord is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    at, since, why = time.strftime(_TIME), time.monotonic(), None
    while lack := lack_of_room(Path.cwd()):
        why = lack
        time.sleep(_POLL_S)
    if why is not None:
        stood_s = time.monotonic() - since
        with Path(activity_log).open("a") as log:
            log.write(f"\n{at},000 WARN stood: {name} (the disk was full for {stood_s:.0f} s: {why})\n")
    os.execvp(command[0], command)  # noqa: S606 - the command is the stack's own


def listen(activity_log: str) -> None:
    """Answer events of PROCESS_STATE_BACKOFF; end the rest of the stack once supervisord is gone."""
    from supervisor import childutils

    log, leader = Path(activity_log), psutil.Process(os.getppid())
    killed = Daemon("supervisord", leader.pid, leader.create_time(), log)
    supervisor = childutils.getRPCInterface(os.environ).supervisor
    while True:
        try:
            _, payload = childutils.listener.wait(sys.stdin, sys.stdout)
        except KeyError:
            break  # the header of no event: supervisord was killed, since it ends its listener first
        name = childutils.get_headers(payload)["processname"]
        whys = [end.why for end in exits(log.read_text(errors="replace")) if end.name == name]
        if whys and whys[-1] == WRONG_SETTING:
            supervisor.stopProcess(name)
        childutils.listener.ok(sys.stdout)
    url, until = os.environ[SUPERVISOR_URL], time.monotonic() + _STOP_S
    while session(killed, url) and time.monotonic() < until:  # the kernel has told them to end
        time.sleep(_POLL_S)
    stop(killed, url=url)


if __name__ == "__main__":
    programs: dict[str, Callable[..., None]] = {"supervise": supervise, "run": run, "listen": listen}
    programs[sys.argv[1]](*sys.argv[2:])

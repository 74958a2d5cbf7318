"""supervisord keeps a stack's processes alive: a dead one is started again, each time after a longer pause.

Its XML-RPC interface listens on a unix socket that only this user may open, so it has no password.
Its documentation: https://supervisord.org/
"""

import os
import re
import shlex
import shutil
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from configparser import RawConfigParser
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException
from io import StringIO
from pathlib import Path
from typing import Any, Literal
from xml.parsers.expat import ExpatError
from xmlrpc import client as xmlrpc

import psutil
from pydantic import BaseModel

from deploy.local.processes import (
    Daemon,
    ProcessDiedError,
    StackError,
    last_lines,
    session,
    start,
    stop,
    wait_until,
)
from deploy.local.restarts import ACTIVITY_LOG, WRONG_SETTING, Exit, exits, lack_of_room
from ingest.durable import write_durably

SOCKET = "supervisor.sock"

_SETTINGS = "supervisord.conf"
# -P: no folder that happens to be named like a package is taken for it.
_BESIDE = (sys.executable, "-P", "-m", "deploy.local.restarts")
_LISTENER = "wrong-settings"
_ANSWER_TIMEOUT_S = 30.0
_START_TIMEOUT_S = 20.0
# Six processes that may each take their _STOP_S.
_STOP_ALL_S = 100.0
_STOP_S = 15
# What ends sooner than this is started again after a pause that grows by a second each time.
_SETTLED_S = 10
# Eight hours of such pauses.
_TRIES = 240

State = Literal["runs", "waits", "given up", "stops", "stopped"]
"""waits: to be started again. given up: it ended too often. stopped: it is not started again."""

_STATES: dict[str, State] = {
    "STARTING": "runs",
    "RUNNING": "runs",
    "BACKOFF": "waits",
    "FATAL": "given up",
    "STOPPING": "stops",
}


class ProcessStatus(BaseModel, frozen=True):
    """One process of a stack: its state, and how often it was restarted since the stack came up.

    pid is 0 while it does not run. last_end and why tell of the last time that it ended by itself: when,
    and by which exit status or signal.
    """

    name: str
    state: State
    since: datetime
    pid: int
    restarts: int
    last_end: datetime | None
    why: str | None

    @property
    def runs(self) -> bool:
        """Whether it runs, or has just been started."""
        return self.state == "runs"

    @property
    def given_up(self) -> bool:
        """Whether it is not going to be started again."""
        return self.state in ("given up", "stopped")


@dataclass(frozen=True)
class Supervisor:
    """A supervisord. folder holds its settings and its activity log, sockets its socket."""

    process: Daemon
    folder: Path
    sockets: Path

    def launch(
        self,
        name: str,
        command: Sequence[str | Path],
        *,
        log: Path,
        environment: Mapping[str, str] | None = None,
        folder: Path,
    ) -> Daemon:
        """Start a process and keep it alive; one of that name that runs is stopped before.

        `environment` is its whole environment, and passes through a command line: nothing in it may be
        secret. Without it the process has supervisord's own. Raises StackError.
        """
        settings = _read(self.folder)
        again = settings.has_section(f"program:{name}")
        if environment is not None:
            command = ("env", "-i", *(f"{key}={value}" for key, value in environment.items()), *command)
        programs = [section for section in settings.sections() if section.startswith("program:")]
        settings[f"program:{name}"] = {
            "command": _plain(
                shlex.join((*_BESIDE, "run", str(self.folder / ACTIVITY_LOG), name, *map(str, command)))
            ),
            "directory": _plain(folder),
            # They are stopped in the reverse of this order.
            "priority": settings.get(f"program:{name}", "priority", fallback=str(len(programs) + 1)),
            "autostart": "false",
            "autorestart": "unexpected",
            "exitcodes": WRONG_SETTING.rpartition(" ")[2],
            "startsecs": str(_SETTLED_S),
            "startretries": str(_TRIES),
            "stopwaitsecs": str(_STOP_S),
            "killasgroup": "true",
            "redirect_stderr": "true",
            "stdout_logfile": _plain(_plain(log)),
            "stdout_logfile_maxbytes": "10MB",
            "stdout_logfile_backups": "2",
        }
        _write(self.folder, settings)
        log.parent.mkdir(parents=True, exist_ok=True)
        if again:
            self.end(name)
            self._ask("removeProcessGroup", name)
        self._ask("reloadConfig")
        self._ask("addProcessGroup", name)
        try:
            if not shutil.which(command[0]):
                raise StackError(f"there is no {command[0]}")
            self._ask("startProcess", name, False)
            pid = self._ask("getProcessInfo", name)["pid"]
            return Daemon(name, pid, psutil.Process(pid).create_time(), log)
        except (StackError, psutil.NoSuchProcess) as error:
            end = last_lines(log)
            raise ProcessDiedError(f"{name} ended as soon as it was started: {error}.\n{end}") from error

    def end(self, name: str) -> None:
        """Stop one process, which is then not started again; does nothing where it does not run."""
        if self._ask("getProcessInfo", name)["statename"] in ("RUNNING", "STARTING", "BACKOFF"):
            self._ask("stopProcess", name)

    def states(self) -> list[ProcessStatus]:
        """The processes in the order of their start. Raises StackError where supervisord does not answer."""
        settings = _read(self.folder)
        own = [process for process in self._ask("getAllProcessInfo") if process["name"] != _LISTENER]
        own.sort(key=lambda process: settings.getint(f"program:{process['name']}", "priority"))
        ended = exits((self.folder / ACTIVITY_LOG).read_text(errors="replace"))
        lack = lack_of_room(self.folder)
        return [_status(process, ended, lack if lack and _waits(process["pid"]) else None) for process in own]

    def answers(self) -> bool:
        """Whether supervisord can be asked."""
        try:
            self._ask("getState")
        except StackError:
            return False
        return True

    def stop(self) -> None:
        """Stop every process, the last one started first, and supervisord; kill those that do not end."""
        stop(self.process, _STOP_ALL_S, self._url)

    def processes(self) -> set[psutil.Process]:
        """Supervisord and all that it started, also where it has ended and they have not."""
        return session(self.process, self._url)

    @property
    def _url(self) -> str:
        return f"unix://{self.sockets / SOCKET}"

    def _ask(self, method: str, *arguments: str | bool) -> Any:
        body = xmlrpc.dumps(arguments, f"supervisor.{method}")
        try:
            with closing(HTTPConnection("supervisord")) as connection:
                connection.sock = socket.socket(socket.AF_UNIX)
                connection.sock.settimeout(_ANSWER_TIMEOUT_S)
                connection.sock.connect(str(self.sockets / SOCKET))
                connection.request("POST", "/RPC2", body, {"Content-Type": "text/xml"})
                ((value,), _) = xmlrpc.loads(connection.getresponse().read())
            return value
        except xmlrpc.Fault as fault:
            called = " ".join(map(str, (method, *arguments)))
            raise StackError(f"supervisord: {called}: {fault.faultString}") from fault
        except (OSError, HTTPException, ExpatError) as error:
            why = str(error) or type(error).__name__
            raise StackError(f"supervisord does not answer ({why}): `forgewatch up` starts anew") from error


def start_supervisor(
    folder: Path, sockets: Path, environment: Mapping[str, str], started: Callable[[Daemon], None]
) -> Supervisor:
    """Start a supervisord without any process yet, in a session of its own; `started` is called at once.

    `environment` is what its processes get unless they are launched with one. Raises StackError.
    """
    folder.mkdir(parents=True, exist_ok=True)
    settings = RawConfigParser()
    umask = os.umask(0o077)
    os.umask(umask)
    settings["supervisord"] = {
        "nodaemon": "true",
        "silent": "true",
        "identifier": "forgewatch",
        "logfile": _plain(folder / ACTIVITY_LOG),
        "logfile_maxbytes": "10MB",
        "logfile_backups": "1",
        "pidfile": _plain(folder / "supervisord.pid"),
        "childlogdir": _plain(folder),
        "umask": f"{umask:03o}",
    }
    settings["unix_http_server"] = {"file": _plain(sockets / SOCKET), "chmod": "0700"}
    settings["rpcinterface:supervisor"] = {
        "supervisor.rpcinterface_factory": "supervisor.rpcinterface:make_main_rpcinterface"
    }
    listen = (*_BESIDE, "listen", str(folder / ACTIVITY_LOG))
    settings[f"eventlistener:{_LISTENER}"] = {
        "command": _plain(shlex.join(listen)),
        "events": "PROCESS_STATE_BACKOFF",
        "stderr_logfile": _plain(_plain(folder / f"{_LISTENER}.log")),
        "stdout_logfile": "NONE",
    }
    _write(folder, settings)
    command = (*_BESIDE, "supervise", "-c", folder / _SETTINGS)
    log = folder / "output.log"
    process = start("supervisord", command, log=log, environment=environment, folder=folder)
    started(process)
    supervisor = Supervisor(process, folder, sockets)
    wait_until(process, supervisor.answers, _START_TIMEOUT_S)
    return supervisor


def _waits(pid: int) -> bool:
    try:
        return psutil.Process(pid).cmdline()[: len(_BESIDE)] == [*_BESIDE]
    except psutil.Error:
        return False


def _status(process: Mapping[str, Any], ended: Sequence[Exit], lack: str | None) -> ProcessStatus:
    mine = [end for end in ended if end.name == process["name"]]
    last = mine[-1] if mine else None
    wrong = last is not None and last.why == WRONG_SETTING
    state: State = "waits" if lack else _STATES.get(process["statename"], "stopped")
    return ProcessStatus(
        name=process["name"],
        state=state,
        since=datetime.fromtimestamp(process["start"] if process["pid"] else process["stop"], UTC),
        pid=process["pid"],
        restarts=max(0, sum(not end.stood for end in mine) - (state != "runs")),
        last_end=last and last.at,
        why=f"the disk is full: {lack}"
        if lack
        else (last and (f"{last.why}: a setting is wrong; its log names it" if wrong else last.why)),
    )


def _plain(value: object) -> str:
    """A value that supervisord reads without filling anything in, which it does twice in names of logs."""
    if match := re.search(r"\s[#;]|\n", str(value)):
        raise StackError(f"{value}: supervisord would read no further than {match[0]!r}; use another folder")
    return str(value).replace("%", "%%")


def _read(folder: Path) -> RawConfigParser:
    settings = RawConfigParser()
    settings.read(folder / _SETTINGS)
    return settings


def _write(folder: Path, settings: RawConfigParser) -> None:
    text = StringIO()
    settings.write(text)
    write_durably(folder / _SETTINGS, text.getvalue().encode())

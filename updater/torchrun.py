"""An update in one process a GPU, which torchrun starts: its command, and the wait for its end."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import structlog
from sqlalchemy.exc import SQLAlchemyError

from updater.metrics import PROGRESS
from updater.records import UpdateRun
from updater.runs import RunTable

SHUTDOWN_TIMEOUT_S = 100
"""How long torchrun waits for its processes after SIGTERM: less than a pod's grace, more than one export."""

ON_LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
"""The processes of one host talk among themselves."""

_LOOK_EVERY_S = 0.5

log = structlog.get_logger()


def torchrun(count: int) -> list[str]:
    """Return the command that starts `updater.run` in so many processes of one host."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    ends = f"--shutdown-timeout={SHUTDOWN_TIMEOUT_S}"
    return [*launcher, ends, f"--nproc-per-node={count}", "-m", "updater.run"]


def carry_out_next(
    table: RunTable, count: int, stop: threading.Event, beat: Callable[[], None]
) -> UpdateRun | None:
    """Have the run that is next carried out in `count` processes; returns its row as it is then.

    None where there is nothing to claim. They claim it, write its row and say on the terminal how far it is,
    as this process would. beat is called whenever they have got further. They are told to stop where `stop`
    is set, and give the run back. A row that is left `queued` says what it waits for. Raises SQLAlchemyError.
    """
    run = table.claimable()
    if run is None:
        return None
    with _start_processes(count) as processes:
        seen: tuple[object, ...] = ()
        while processes.poll() is None and not stop.wait(_LOOK_EVERY_S):
            with suppress(SQLAlchemyError):  # they ride it out as well
                now = table.get(run.id)
                # The lease is renewed even by a training that is stuck.
                if seen != (seen := (now.state, now.stage, now.done)):
                    PROGRESS.set(now.done / now.total if now.total else 0)
                    beat()
    ended = table.get(run.id)
    if processes.returncode and not stop.is_set():
        problem = f"its {count} processes ended with exit code {processes.returncode}, see the log"
        log.error("update interrupted", run=run.id, error=problem)
        if ended.state == "queued" and ended.error is None and table.explain(ended, problem):
            ended = table.get(run.id)
    return ended


@contextmanager
def _start_processes(count: int) -> Iterator["subprocess.Popen[bytes]"]:
    # A session of their own: what a terminal's Ctrl-C sends to all would be their second signal.
    own = {"FORGEWATCH_UPDATER_METRICS_PORT": "0"}
    processes = subprocess.Popen(  # noqa: S603 - it is ourselves
        torchrun(count), env=ON_LOOPBACK | os.environ | own, start_new_session=True
    )
    try:
        yield processes
    finally:
        if processes.poll() is None:
            processes.terminate()
        processes.wait()
        PROGRESS.set(0)

"""The updater's loop: the schedule writes rows, and one by one they are carried out, here or elsewhere.

What trains is loaded where updates are carried out: a process that makes Kubernetes Jobs of them needs no
torch.
"""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from secrets import token_hex

import structlog
from sqlalchemy.exc import SQLAlchemyError

from ingest.process.health import Heartbeat
from memory.database import cause_of
from memory.settings import MemorySettings
from memory.store import ExemplarMemoryError
from updater import metrics, torchrun
from updater.progress import Progress, terminal
from updater.records import UpdateRun
from updater.runs import Lease, LeaseLostError
from updater.schedule import labelled_since
from updater.services import UpdaterServices, open_services
from updater.settings import UpdaterSettings

POLL_S = 1.0
"""between two looks for a run: two small queries"""
LONGEST_PAUSE_S = 60.0

Carry = Callable[[], str | None]
"""Does what is to be done for the run that is next; returns in one line what keeps it from going on."""

log = structlog.get_logger()


def run_once(
    settings: UpdaterSettings, memory: MemorySettings | None = None, stop: threading.Event | None = None
) -> UpdateRun | None:
    """Work the queue off until it is empty, after asking for an update where it is empty already.

    Returns the run that was worked on last; None where another runner holds the one that runs. Its
    state is `queued` where deploy or the memory could not be reached, or where stop was set.
    """
    stop = stop or threading.Event()
    with open_services(settings, memory or MemorySettings()) as services, terminal() as show:
        if not services.table.count_by_state().get("queued"):
            services.table.request(f"manual/{token_hex(8)}", "manual", "python -m updater --once")
        last = None
        while run := _step(services, stop, show, lambda: None):
            last = run
            if run.state == "queued":
                break
        return last


def run(services: UpdaterServices, stop: threading.Event, heartbeat: Heartbeat, carry: Carry) -> None:
    """Have the queue worked off, and watch it for new runs, until stop is set."""
    pause_s = POLL_S
    while not stop.is_set():
        try:
            metrics.WAITING.set(labelled_since(services.store, services.table.labels_seen()))
            problem = carry()
        except (SQLAlchemyError, ExemplarMemoryError) as error:
            problem = f"the database does not answer: {cause_of(error)}"
            log.warning("the database does not answer, trying again", error=cause_of(error))
        heartbeat.beat(problem)
        pause_s = min(2 * pause_s, LONGEST_PAUSE_S) if problem else POLL_S
        stop.wait(pause_s)


@contextmanager
def carrying_here(services: UpdaterServices, stop: threading.Event, heartbeat: Heartbeat) -> Iterator[Carry]:
    """Yield a function that carries a run out in this process, or in one for each of several GPUs.

    Raises ImportError where what trains is not installed.
    """
    import updater.runner  # noqa: F401 - what is missing is missed at the start

    with terminal() as screen:

        def show(stage: str, done: int, total: int) -> None:
            heartbeat.beat()
            screen(stage, done, total)

        def carry() -> str | None:
            worked = _step(services, stop, show, heartbeat.beat)
            if worked is None or worked.state != "queued" or stop.is_set():
                return None
            return f"update {worked.id} {worked.error}"

        yield carry


def _step(
    services: UpdaterServices, stop: threading.Event, show: Progress, beat: Callable[[], None]
) -> UpdateRun | None:
    """Carry the run that is next as far as it goes; None where there is nothing to claim."""
    from updater.training.processes import gpus

    if (count := gpus(services.settings.device)) > 1:
        return torchrun.carry_out_next(services.table, count, stop, beat)
    lease = services.table.claim(runner_name())
    return None if lease is None else carry_out(services, lease, stop, show)


def carry_out(services: UpdaterServices, lease: Lease, stop: threading.Event, show: Progress) -> UpdateRun:
    """Carry a claimed run as far as it goes; returns its row as it is then, with any holder."""
    from updater.runner import work

    try:
        return work(services, lease, stop, show)
    except LeaseLostError as error:
        log.warning("lease lost", run=lease.run, error=str(error))
        return services.table.get(lease.run)


def runner_name() -> str:
    """Return the name of this process in the rows that it holds."""
    return f"{socket.gethostname()}-{os.getpid()}"

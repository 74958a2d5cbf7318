"""A schedule in a process of its own, started by test_run_faults.py: its clock and its death are lent.

Arguments: the database's URL, the lent numbers' file, this process's place in it, and whether its slots are
its own, which no unique slot defends: the control.
"""

import os
import signal
import sys
import threading
from datetime import UTC, datetime

import numpy as np
from sqlalchemy import event

from memory.database import open_engine
from updater import schedule
from updater.runs import RunTable
from updater.settings import UpdaterSettings

CLOCK, FIRST = 0, 1
NEVER, BEFORE_COMMIT, AFTER_COMMIT = 0, 1, 2
PERIOD_S = 900


def main(url: str, path: str, place: str, apart: str) -> None:
    lent = np.memmap(path, np.float64, "r+")
    engine = open_engine(url)
    table = RunTable(engine, lease_s=60)
    request = table.request

    def requested(slot, trigger, by):
        done = request(slot + (f"/{place}" if apart == "apart" else ""), trigger, by)
        if lent[FIRST + int(place)] == AFTER_COMMIT:
            os.kill(os.getpid(), signal.SIGKILL)
        return done

    def committing(_):
        if lent[FIRST + int(place)] == BEFORE_COMMIT:
            os.kill(os.getpid(), signal.SIGKILL)

    table.request = requested
    event.listen(engine, "commit", committing)
    schedule.POLL_S = 0.05
    schedule.start(
        UpdaterSettings(schedule=str(PERIOD_S)),
        table,
        lambda seen: 0,
        lambda seen: 0,
        lambda: None,
        lambda: datetime.fromtimestamp(float(lent[CLOCK]), UTC),
    )
    threading.Event().wait()


if __name__ == "__main__":
    main(*sys.argv[1:])

"""Two schedules in processes of their own, killed around the due moment; their clock goes as it will."""

import contextlib
import os
import random
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import psutil
import pytest

from memory.database import open_engine
from tests.updater.scheduling import AFTER_COMMIT, BEFORE_COMMIT, CLOCK, FIRST, NEVER, PERIOD_S
from updater.runs import RunTable

pytestmark = pytest.mark.slow

NOON = datetime(2025, 1, 1, 12, tzinfo=UTC)
PERIOD, YEAR = timedelta(seconds=PERIOD_S), timedelta(days=365)
HOSTS = 2


def slot(due):
    return f"scheduled/{due:%Y-%m-%dT%H:%M:%SZ}"


class Hosts:
    """Two processes with the same schedule on one database, and the clock that both look at."""

    def __init__(self, fork, url, folder, *, apart):
        self._fork, self._url, self._path, self._apart = fork, url, folder / "lent", apart
        self._lent = np.memmap(self._path, np.float64, "w+", shape=FIRST + HOSTS)
        self.engine = open_engine(url)
        self.table = RunTable(self.engine, lease_s=60)
        self.table.request("manual/0", "manual", "ann")  # else it is a system that never ran
        self.running = {}
        self.faults, self.recovery_s = 0, 0.0

    def start(self):
        for place in range(HOSTS):
            if place not in self.running:
                self._lent[FIRST + place] = NEVER
                script = Path(__file__).with_name("scheduling.py")
                arguments = (self._url, str(self._path), str(place), "apart" if self._apart else "")
                self.running[place] = self._fork(script, os.environ, *arguments)

    def kill(self, places):
        for place in places:
            process = self.running.pop(place)
            process.kill()
            process.wait()
            self.faults += 1

    def set_clock(self, now):
        self._lent[CLOCK] = now.timestamp()

    def arm(self, places, point):
        for place in places:
            self._lent[FIRST + place] = point

    def rows(self):
        scheduled = (run.slot for run in self.table.newest(10**6) if run.trigger == "scheduled")
        return sorted(slot.removesuffix("/0").removesuffix("/1") for slot in scheduled)

    def written(self, due):
        return slot(due) in self.rows()

    def await_that(self, condition):
        deadline = time.monotonic() + 120
        while not condition():
            assert time.monotonic() < deadline
            time.sleep(0.005)

    def await_row(self, due):
        begun = time.monotonic()
        self.await_that(lambda: self.written(due))
        self.recovery_s = max(self.recovery_s, time.monotonic() - begun)

    def die_around(self, due, chance):
        """The due moment comes, and one or both die before, in or after the writing; then they are back."""
        victims = chance.choice([[0], [1], [0, 1], [0, 1]])
        point = chance.choice(["before", BEFORE_COMMIT, AFTER_COMMIT, "any"])
        if point == "before":
            self.kill(victims)
        elif point != "any":
            self.arm(victims, point)
        self.set_clock(due)
        if point == "any":
            with contextlib.suppress(psutil.TimeoutExpired):
                self.running[victims[0]].wait(chance.uniform(0, 0.05))
        elif point != "before":
            self.await_that(
                lambda: self.written(due) or all(self.running[one].poll() is not None for one in victims)
            )
        self.kill([one for one in victims if one in self.running])
        self.start()
        self.await_row(due)


@pytest.fixture
def hosts(fork, either_database, tmp_path):
    opened = []

    def begin(*, apart=False):
        opened.append(Hosts(fork, either_database, tmp_path, apart=apart))
        opened[0].set_clock(NOON)
        opened[0].start()
        return opened[0]

    yield begin
    for one in opened:
        one.kill(list(one.running))
        one.engine.dispose()


def lives(host, times):
    """Die so often, with jumps of the clock and an hour's downtime; return the slots that are to be there."""
    seed = random.randrange(10**6)
    print(f"seed {seed}")
    chance, now, due = random.Random(seed), NOON, []
    host.await_row(now)
    due.append(now)
    jumps = [YEAR, -YEAR, -2 * YEAR, YEAR]
    while host.faults < times:
        if chance.random() < 0.2 or (host.faults > times // 2 and len(jumps) == 4):
            # There and back: what was written is found again by its slot.
            jump = jumps.pop() if jumps else chance.choice([YEAR, -YEAR])
            if now + jump not in due:
                due.append(now + jump)
            host.die_around(now + jump, chance)
            host.set_clock(now)
        now += PERIOD
        due.append(now)
        host.die_around(now, chance)
    host.kill([0, 1])
    now += timedelta(hours=1)
    host.set_clock(now + timedelta(seconds=7))
    due.append(now)  # the newest of the four that were missed
    host.start()
    host.await_row(now)
    return sorted(map(slot, due))


@pytest.mark.bar("A1")
def test_schedulers_that_are_killed_around_the_due_moment_write_each_slot_once(hosts, bar):
    host = hosts()
    wanted = lives(host, bar.times(6, 50))
    rows = host.rows()
    bar.count(
        host.faults,
        lost=len(set(wanted) - set(rows)),
        twice=len(rows) - len(set(rows)),
        recovery_s=host.recovery_s,
    )
    assert rows == wanted


@pytest.mark.bar("A1")
def test_control_without_a_unique_slot_it_is_written_twice(hosts):
    host = hosts(apart=True)
    lives(host, 2)
    host.await_that(lambda: len(host.rows()) > len(set(host.rows())))

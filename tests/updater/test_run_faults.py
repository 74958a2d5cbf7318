"""A disk that is full and a loss that is no number: the update ends with one line, and proposes nothing.

A full disk has no control: there is no defence to be switched off, since the system refuses the write itself.
"""

import contextlib
import math
import os
import random
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
import torch
from sqlalchemy import event
from sqlalchemy.exc import OperationalError

from memory.database import open_engine
from tests.updater.on_a_small_disk import NOT_TO_BE_HAD
from tests.updater.scheduling import AFTER_COMMIT, BEFORE_COMMIT, CLOCK, FIRST, NEVER, PERIOD_S
from updater.runner import work
from updater.runs import RunTable
from updater.services import open_services
from updater.training import two_stages
from updater.worker import run_once

pytestmark = pytest.mark.slow


def proposals(url):
    return [one["digest"] for one in httpx.get(f"{url}/releases").json()]


@pytest.fixture
def media(remember):
    remember("real", 40)
    remember("blocky", 40)


@pytest.fixture
def spoil(monkeypatch):
    """Has the loss be this number from a step on."""
    classification = two_stages.classification

    def spoil(value, after):
        steps = iter(range(10**6))

        def spoilt(step, data):
            loss = classification(step, data)
            return lambda batch: loss(batch) * (value if next(steps) >= after else 1.0)

        monkeypatch.setattr(two_stages, "classification", spoilt)

    return spoil


@pytest.mark.bar("A2")
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_no_number_ends_the_update_with_one_line_and_proposes_nothing(
    scant_recipes, make_settings, media, memory_settings, deploy_server, spoil, value, bar
):
    spoil(value, after=1)
    with deploy_server() as (url, artifacts):
        run = run_once(make_settings(url), memory_settings)
        bar.count(1)
        assert proposals(url) == []
        assert not list(artifacts.glob("*/manifest.json"))
    assert run.state == "failed"
    assert run.error == "DivergedError: the training diverged: by step 2 a weight is no number"


@pytest.mark.bar("A2")
def test_control_where_nobody_looks_at_the_weights_the_update_trains_on_with_them(
    scant_recipes, make_settings, media, memory_settings, deploy_server, spoil, monkeypatch, bar
):
    spoil(math.nan, after=1)
    monkeypatch.setattr(torch, "isfinite", lambda values: torch.ones_like(values, dtype=torch.bool))
    with deploy_server() as (url, _):
        run = run_once(make_settings(url), memory_settings)
    bar.count(1)
    assert run.state == "failed"  # what fits the reference refuses the numbers, after all of the training
    assert "diverged" not in (run.error or "")


@pytest.mark.bar("A2")
def test_a_full_disk_ends_the_update_with_one_line_and_proposes_nothing(
    environment, table_of, media, deploy_server, fork, tmp_path, bar
):
    script = Path(__file__).with_name("on_a_small_disk.py")
    with deploy_server() as (url, artifacts):
        ended = []
        for kib in (1024, 64, 256, 4096, 8192)[: bar.times(1, 5)]:
            settings = environment(url, f"of-{kib}", DATABASE_URL=f"sqlite:///{tmp_path}/of-{kib}.sqlite")
            table = table_of(settings)
            run, _ = table.request("manual/1", "manual", "ann")
            if fork(script, settings | {"DISK_KIB": str(kib)}).wait(400) == NOT_TO_BE_HAD:
                pytest.skip("no mount namespace may be made here")
            ended.append(table.get(run.id))
        bar.count(len(ended))
        print(*((run.state, run.stage, run.error) for run in ended), sep="\n")
        assert proposals(url) == []
        assert not list(artifacts.glob("*/manifest.json"))
    assert {run.state for run in ended} == {"failed"}
    assert all("No space left on device" in run.error and "\n" not in run.error for run in ended)


@pytest.mark.bar("A2")
def test_an_update_whose_table_does_not_answer_waits_and_is_proposed_later(
    scant_recipes, make_settings, media, memory_settings, deploy_server, bar
):
    with (
        deploy_server() as (url, _),
        open_services(make_settings(url, backbone="none"), memory_settings) as services,
    ):
        table, down = services.table, threading.Event()

        def refuse(*statement):
            if down.is_set() and threading.current_thread() is threading.main_thread():
                down.clear()
                raise OperationalError("UPDATE", {}, Exception("the server closed\nthe connection"))

        event.listen(table._engine, "before_cursor_execute", refuse)
        table.request("manual/1", "manual", "ann")

        def work_on(show):
            return work(services, table.claim("one"), threading.Event(), show)

        waits = work_on(lambda stage, done, total: down.set() if stage == "propose" else None)
        assert (waits.state, proposals(url)) == ("queued", [])
        assert waits.error == "waits: the updater's database failed: the server closed the connection"
        ended = work_on(lambda *at: None)
        bar.count(1, lost=int(not ended.state.startswith("proposed")), twice=len(proposals(url)) - 1)
        assert proposals(url) == [ended.candidate]


# Two schedules in processes of their own, killed around the due moment; their clock goes as it will.
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

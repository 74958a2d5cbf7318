"""A stack under load for hours: what each process holds stays within bounds, and counters say what came."""

import threading
import time
from contextlib import suppress
from dataclasses import astuple, dataclass

import psutil
import pytest
from media_stream import Stream
from serving_faults import family, launched, metric
from streams import await_that

pytestmark = pytest.mark.system

SHORT_S, EVERY_S, SAID_EVERY_S = 6.0, 1.0, 300.0
COUNTERS = ("consumed", "verdicts", "dead_letters")
HOSTILE = [b"no media", b"\xff\xd8\xff no picture either"]


@dataclass(frozen=True)
class Held:
    """What a process and all that it started hold at a moment, or may hold at most."""

    mib: float
    files: int
    threads: int

    def within(self, most):
        return all(one <= other for one, other in zip(astuple(self), astuple(most), strict=True))


MOST = {
    "detector": Held(500, 80, 40),
    "memory": Held(1500, 80, 30),
    "updater": Held(1000, 60, 30),
    "deploy": Held(400, 80, 60),
    "torchserve": Held(1400, 300, 150),
    "broker": Held(900, 600, 150),
}


def held(pid):
    memory = files = threads = 0
    for process in family(pid):
        with suppress(psutil.NoSuchProcess):
            memory += process.memory_info().rss
            files += process.num_fds()
            threads += process.num_threads()
    return Held(memory / 2**20, files, threads)


def soak(trials, stream, seconds):
    """Watch for so long; the most that each process held of each thing, and the most loaded versions."""
    most, loaded, waiting = dict[str, Held](), 0, threading.Event()
    began_s = said_s = time.monotonic()
    with trials.torchserve() as client:
        while (now_s := time.monotonic()) < began_s + seconds:
            stream.send(HOSTILE)
            now = {
                kept.name: held(kept.pid) for kept in trials.stack.supervisor.states() if kept.name in MOST
            }
            for name, holds in now.items():
                most[name] = Held(*map(max, astuple(holds), astuple(most.get(name, holds))))
            if now_s > said_s + SAID_EVERY_S:
                said_s = now_s
                print(f"{now_s - began_s:.0f} s, {len(stream.sent_s)} items: {now}", flush=True)
            loaded = max(loaded, len(client.versions()))
            waiting.wait(EVERY_S)
    return most, loaded


def counters(trials):
    """What the worker has counted since it was started."""
    port = trials.stack.ports.detector_metrics
    return {name: int(metric(port, f"forgewatch_detector_{name}_total")) for name in COUNTERS}


@pytest.fixture
def nothing_waits(trials, champion):
    """Every item that was sent before is answered: what a worker counts from now on was sent from now on."""
    with Stream(trials.ingest) as before:
        await_that(lambda: len(before.answered_s) >= 20)
        before.drain()
        assert not before.lost
    with trials.torchserve() as client:  # a test before may have swapped
        await_that(lambda: client.versions().keys() == {champion.version}, every_s=0.1)


@pytest.mark.bar("L1")
@pytest.mark.usefixtures("nothing_waits")
def test_a_soak_leaves_every_process_within_its_bounds_and_its_counters_say_what_came(trials, bar):
    with launched(trials.stack, "detector"), Stream(trials.ingest) as stream:
        stream.recovery_s()
        restarts = {kept.name: kept.restarts for kept in trials.stack.supervisor.states()}
        most, loaded = soak(trials, stream, SHORT_S if not bar.long else bar.soak_s)
        stream.drain()
        dead = len(stream.dead_letters.keys() & stream.sent_s.keys())
        sent = len(stream.sent_s)
        came = {"consumed": sent, "verdicts": sent - dead, "dead_letters": dead}
        await_that(lambda: counters(trials) == came, 30, lambda: (counters(trials), came))
        ended = {kept.name: kept.restarts for kept in trials.stack.supervisor.states()}
    print(f"{sent} items, {dead} dead letters, {loaded} versions; at most {most}")
    bar.count(0, lost=stream.lost, twice=stream.twice)
    assert (stream.lost, stream.twice) == (0, 0)
    assert ended == restarts
    assert loaded == 1
    assert {name: held for name, held in most.items() if not held.within(MOST[name])} == {}


@pytest.mark.bar("L1")
def test_control_a_worker_that_leaves_files_open_goes_beyond_its_bounds(trials, champion, bar):
    with launched(trials.stack, "detector", without="closing"), Stream(trials.ingest) as stream:
        stream.recovery_s()
        most, _ = soak(trials, stream, SHORT_S / 2)
    bar.count(1)
    assert not most["detector"].within(MOST["detector"])

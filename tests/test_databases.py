"""Databases that fail under load: each room keeps what it acknowledged, and goes on by itself."""

import contextlib
import resource
import threading
import time

import pytest
from exemplars import make_arrival
from sqlalchemy import Engine, event
from sqlalchemy.exc import SQLAlchemyError

from deploy.releases.ledger import Ledger, LedgerError, Move
from detector.release.manifest import FEATURE_VERSION
from memory import rows
from memory.crops.crop_store import CropStore
from memory.database import cause_of, open_engine
from memory.index.index import Index
from memory.intake import remember
from memory.store import Store
from memory.worker import RETRYABLE
from tests.memory.conftest import WIDTH
from updater.runs import RunTable

pytestmark = [
    pytest.mark.slow,
    # The cursor of an index that was being read when the server went.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

LARGEST_FILE = 64 * 1024
WRITERS = 2


class Exemplars:
    """What the memory's worker does with an item."""

    unavailable = RETRYABLE

    def __init__(self, url, folder):
        self._crops, self._store = CropStore(str(folder / "crops")), Store(url)
        self._index = Index.open(folder / "index", self._store, FEATURE_VERSION, WIDTH)
        self.close = self._store.close

    def write(self, number):
        item = make_arrival(number, WIDTH)
        digest = self._crops.put(item.crops)
        with self._store.write() as connection:
            remember(connection, self._crops, self._index, [item], [digest], 0.0)

    def kept(self):
        with self._store.read() as connection:
            return [int(each.id.rpartition("-")[2]) for each in rows.select_exemplars(connection)]


class Moves:
    """What deploy's server does with a move: it is written unless it was."""

    unavailable = (LedgerError,)

    def __init__(self, url, folder):
        self._ledger = Ledger(url)
        self.close = self._ledger.close

    def write(self, number):
        move = Move("ann", "raise epoch", "", "", epoch=number)
        self._ledger.append(lambda past: [] if number in {each.move.epoch for each in past} else [move])

    def kept(self):
        return [int(each.move.epoch or 0) for each in self._ledger.events()]


class Runs:
    """What the schedule does with a slot."""

    unavailable = (SQLAlchemyError,)

    def __init__(self, url, folder):
        engine = open_engine(url)
        self._table, self.close = RunTable(engine, lease_s=60), engine.dispose

    def write(self, number):
        self._table.request(f"manual/{number}", "manual", "ann")

    def kept(self):
        return [int(each.slot.rpartition("/")[2]) for each in self._table.newest(10**6)]


ROOMS = (Exemplars, Moves, Runs)


class Load:
    """A thread that writes number after number, each until it is acknowledged; a refusal opens anew."""

    def __init__(self, room, url, folder, first, *, again):
        """again: whether what was refused is written again; not: the control."""
        self._opens = lambda: room(url, folder)
        self._unavailable, self._number, self._again = room.unavailable, first, again
        self.asked = set[int]()
        self.acknowledged = {}
        self.said = []
        self.broke = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def end(self):
        self._stop.set()
        self._thread.join()

    def _run(self):
        with contextlib.ExitStack() as opened:
            room = None
            while not self._stop.is_set() and self.broke is None:
                begun = time.monotonic()
                self.asked.add(self._number)
                try:
                    if room is None:
                        room = self._opens()
                        opened.callback(room.close)
                    room.write(self._number)
                    self.acknowledged[self._number] = begun
                    self._number += WRITERS
                except self._unavailable as error:
                    self.said.append(str(error) if str(error).count("\n") == 0 else cause_of(error))
                    opened.close()
                    room = None
                    self._number += 0 if self._again else WRITERS
                    self._stop.wait(0.02)
                except BaseException as error:  # told by the test
                    self.broke = error


def await_that(condition, loads):
    deadline = time.monotonic() + 100
    while not condition():
        assert not [load.broke for load in loads if load.broke], loads[0].broke or loads[1].broke
        assert time.monotonic() < deadline, loads[0].said[-1:]
        time.sleep(0.005)


@pytest.fixture
def full():
    """SQLite may take no page more."""
    is_full = False

    def bound(connection):
        if connection.dialect.name == "sqlite":
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            most = pages if is_full else 2**30
            connection.exec_driver_sql(f"PRAGMA max_page_count = {most}")

    @contextlib.contextmanager
    def fault():
        nonlocal is_full
        is_full = True
        yield
        is_full = False

    event.listen(Engine, "begin", bound)
    yield fault
    event.remove(Engine, "begin", bound)


@pytest.fixture
def broken():
    """The disk takes nothing behind a file's first bytes: to SQLite, an I/O error."""

    @contextlib.contextmanager
    def fault():
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return fault


FAULTS = {
    "restarted": "",
    "read_only": "read-only transaction",
    "swallowed": "timeout|said nothing",
    "full": "database or disk is full",
    "broken": "disk I/O error",
}


@pytest.fixture(params=FAULTS)
def fault(request):
    name = request.param
    return name, request.getfixturevalue(name)


@pytest.fixture
def url(fault, request):
    lies = {"full": "sqlite_url", "broken": "sqlite_url", "swallowed": "through"}
    named = request.getfixturevalue(lies.get(fault[0], "postgresql_url"))
    return named


def fail(begin, loads):
    """Cause the fault under load; return how long it took until all wrote again, seconds."""
    written, said = sum(len(load.acknowledged) for load in loads), sum(len(load.said) for load in loads)
    await_that(lambda: sum(len(load.acknowledged) for load in loads) > written + 5, loads)
    with begin():
        await_that(lambda: sum(len(load.said) for load in loads) > said, loads)
    over = time.monotonic()
    await_that(lambda: all(max(load.acknowledged.values(), default=0) > over for load in loads), loads)
    return time.monotonic() - over


@pytest.mark.bar("C2")
@pytest.mark.parametrize("room", ROOMS)
def test_a_database_that_fails_under_load_keeps_what_it_acknowledged_once(fault, url, tmp_path, room, bar):
    name, begin = fault
    times = bar.times(1, 1 if name == "swallowed" else 10)
    loads = [Load(room, url, tmp_path, first, again=True) for first in range(WRITERS)]
    try:
        worst = max(fail(begin, loads) for _ in range(times))
    finally:
        for load in loads:
            load.end()
    opened = room(url, tmp_path)
    kept = opened.kept()
    opened.close()
    acknowledged = set[int]().union(*(load.acknowledged for load in loads))
    bar.count(times, lost=len(acknowledged - {*kept}), twice=len(kept) - len({*kept}), recovery_s=worst)
    assert acknowledged <= {*kept}
    assert {*kept} <= set[int]().union(*(load.asked for load in loads))
    assert len(kept) == len({*kept})
    said = [line for load in loads for line in load.said]
    assert not [line for line in said if "\n" in line]
    assert any(part in line for part in FAULTS[name].split("|") for line in said), said


@pytest.mark.bar("C2")
def test_control_what_was_refused_and_is_not_written_again_is_lost(fault, url, tmp_path):
    # What a fault refuses may have been written all the same, so that one of a few faults loses something.
    for turn in range(5):
        first = range(turn * 1_000_000, turn * 1_000_000 + WRITERS)
        loads = [Load(Runs, url, tmp_path, number, again=False) for number in first]
        try:
            fail(fault[1], loads)
        finally:
            for load in loads:
                load.end()
        opened = Runs(url, tmp_path)
        kept = {*opened.kept()}
        opened.close()
        if set[int]().union(*(load.asked for load in loads)) - kept:
            return
    pytest.fail("nothing was lost")

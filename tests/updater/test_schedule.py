import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from sqlalchemy import create_engine, event
from sqlalchemy.exc import OperationalError

from updater import schedule
from updater.runs import RunTable, utc_now
from updater.settings import UpdaterSettings

NOON = datetime(2025, 1, 1, 12, tzinfo=UTC)


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path / 'runs.sqlite'}"


def view(url):
    engine = create_engine(url)
    yield RunTable(engine, lease_s=60, max_takeovers=2)
    engine.dispose()


table, other_host = pytest.fixture(view), pytest.fixture(view)


def nothing(seen):
    return 0


def no_drift():
    return None


def nightly():
    return schedule.build_trigger(UpdaterSettings(schedule="0 3 * * *"))


@given(st.integers(0, 10**9), st.integers(2, schedule.GRACE_S), st.floats(0, 1), st.floats(0, 1))
def test_all_who_ask_between_two_due_times_get_the_same_slot(slot, interval_s, early, late):
    trigger = schedule.build_trigger(UpdaterSettings(schedule=str(interval_s)))
    due = schedule.EPOCH + timedelta(seconds=interval_s * (slot % 1000))
    moments = [due + timedelta(seconds=(interval_s - 1) * part) for part in (early, late)]
    assert [schedule.due_slot(trigger, moment) for moment in moments] == [due, due]


def test_a_slot_older_than_the_grace_time_is_not_made_up_for():
    three = datetime(2025, 1, 1, 3, tzinfo=UTC)
    assert schedule.due_slot(nightly(), three) == three
    assert schedule.due_slot(nightly(), three + timedelta(minutes=59)) == three
    assert schedule.due_slot(nightly(), three + timedelta(minutes=61)) is None


def test_two_schedulers_write_one_row_a_slot(table, other_host):
    trigger = schedule.build_trigger(UpdaterSettings(schedule="60"))
    made = []
    for second in range(0, 180, 10):
        now = NOON + timedelta(seconds=second)
        made += [schedule.request_scheduled(host, trigger, now) for host in (table, other_host)]
    slots = [run.slot for run in made if run is not None]
    assert slots == [f"scheduled/2025-01-01T12:0{minute}:00Z" for minute in range(3)]


@pytest.mark.bar("A1")
def test_two_real_schedulers_that_run_side_by_side_write_one_row_a_slot(table, other_host):
    settings = UpdaterSettings(schedule="1")
    fired = threading.Event()
    schedulers = [schedule.start(settings, host, nothing, nothing, no_drift) for host in (table, other_host)]
    try:
        for _ in range(200):
            if len(table.newest(10)) >= 2:
                break
            fired.wait(0.05)
    finally:
        for scheduler in schedulers:
            scheduler.shutdown()
    runs = table.newest(10)
    assert len(runs) >= 2
    assert len({run.slot for run in runs}) == len(runs)
    assert {run.trigger for run in runs} == {"scheduled"}


def test_enough_new_labels_write_one_row_and_no_second_while_it_waits_or_runs(table, other_host):
    assert schedule.request_labelled(table, "count", lambda since: 19, 20) is None
    assert schedule.request_labelled(table, "count", lambda since: 20, 20).trigger == "count"
    assert schedule.request_labelled(other_host, "count", lambda since: 20, 20) is None
    table.claim("one")
    assert schedule.request_labelled(other_host, "count", lambda since: 500, 20) is None


def test_the_count_starts_anew_from_the_labels_that_the_last_update_saw(table):
    def labelled_since(seen):
        return 30 - seen

    schedule.request_labelled(table, "count", labelled_since, 20)
    lease = table.claim("one")
    table.record_newest_label(lease, 25)
    table.finish(lease, "failed", error="the disk was full")
    assert schedule.request_labelled(table, "count", labelled_since, 6) is None
    assert schedule.request_labelled(table, "count", labelled_since, 5) is not None


@pytest.mark.bar("A1")
def test_a_slot_missed_while_no_scheduler_lived_is_made_up_for_unless_nothing_ever_ran(table):
    settings = UpdaterSettings(schedule="0 3 * * *")
    ten_past = datetime(2025, 1, 1, 3, 10, tzinfo=UTC)
    schedule.start(settings, table, nothing, nothing, no_drift, lambda: ten_past).shutdown()
    assert table.newest() == []
    table.request("manual/1", "manual", "ann")
    schedule.start(settings, table, nothing, nothing, no_drift, lambda: ten_past).shutdown()
    schedule.start(settings, table, nothing, nothing, no_drift, lambda: ten_past).shutdown()
    assert [run.slot for run in table.newest()] == ["scheduled/2025-01-01T03:00:00Z", "manual/1"]


@pytest.fixture
def outage(table, other_host):
    """A database that answers neither host while it is down; counts how often it was asked then."""

    class Outage:
        down, asked = False, 0

        def refuse(self, *statement):
            if self.down:
                self.asked += 1
                raise OperationalError("BEGIN", {}, Exception("the server closed the connection"))

    found = Outage()
    for host in (table, other_host):
        event.listen(host._engine, "before_cursor_execute", found.refuse)
    return found


def await_that(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("schedule_", ["0 3 * * *", "3600"])
def test_a_slot_that_came_due_while_the_database_was_down_is_written_once_when_it_is_back(
    table, other_host, outage, schedule_, monkeypatch
):
    monkeypatch.setattr(schedule, "POLL_S", 0.02)
    settings = UpdaterSettings(schedule=schedule_)
    three = datetime(2025, 1, 1, 3, tzinfo=UTC)
    now = three - timedelta(seconds=5)
    table.request("manual/1", "manual", "ann")
    hosts = (table, other_host)
    schedulers = [schedule.start(settings, host, nothing, nothing, no_drift, lambda: now) for host in hosts]
    before = len(table.newest(10))
    try:
        outage.down = True
        now = three
        await_that(lambda: outage.asked > 4)
        now = three + timedelta(seconds=14)
        outage.down = False
        await_that(lambda: len(table.newest(10)) > before)
    finally:
        for scheduler in schedulers:
            scheduler.shutdown()
    slots = [run.slot for run in table.newest(10)]
    assert slots.count("scheduled/2025-01-01T03:00:00Z") == 1
    assert len(slots) == before + 1


def test_a_start_while_the_database_is_down_loses_no_slot_either(table, outage, monkeypatch):
    monkeypatch.setattr(schedule, "POLL_S", 0.02)
    settings = UpdaterSettings(schedule="0 3 * * *")
    table.request("manual/1", "manual", "ann")
    outage.down = True
    ten_past = datetime(2025, 1, 1, 3, 10, tzinfo=UTC)
    scheduler = schedule.start(settings, table, nothing, nothing, no_drift, lambda: ten_past)
    try:
        await_that(lambda: outage.asked > 2)
        outage.down = False
        await_that(lambda: len(table.newest()) == 2)
    finally:
        scheduler.shutdown()
    assert table.newest()[0].slot == "scheduled/2025-01-01T03:00:00Z"


def test_a_look_that_finds_the_slot_written_writes_nothing(table, outage):
    slots = schedule.Slots(table, nightly(), lambda: datetime(2025, 1, 1, 3, 10, tzinfo=UTC))
    table.request("manual/1", "manual", "ann")
    slots()
    assert len(table.newest()) == 2
    outage.down = True
    slots()
    assert outage.asked == 0


def test_without_a_schedule_nothing_comes_due(table):
    assert schedule.build_trigger(UpdaterSettings()) is None
    many = lambda since: 10**6  # noqa: E731
    scheduler = schedule.start(UpdaterSettings(), table, many, many, lambda: NOON)
    try:
        assert scheduler.get_jobs() == []
    finally:
        scheduler.shutdown()


@pytest.mark.parametrize(
    "wrong",
    [
        {"schedule": "61 3 * * *"},
        {"schedule": "daily"},
        {"schedule": "0"},
        {"schedule": "0 3 * * *", "schedule_timezone": "Nowhere/At_All"},
        {"schedule": "0 3 * * *", "schedule_timezone": "../../etc/passwd"},
        *({"schedule": f"0 3 * * {day}"} for day in ("8", "mon-", "5-2", "1/0", "x", "1,,2", "")),
        *({"schedule": f"0 3 {days} *"} for days in ("31 2", "30 feb", "31 4,6,9,11")),
    ],
)
def test_a_wrong_schedule_is_refused_at_start(wrong):
    with pytest.raises(ValidationError):
        UpdaterSettings(**wrong)


@pytest.mark.parametrize(
    ("cron", "dates"),
    [
        ("0 3 * * 0", [4, 11, 18]),
        ("0 3 * * 7", [4, 11, 18]),
        ("0 3 * * SUN", [4, 11, 18]),
        ("0 3 * * 1-5", [1, 2, 5]),
        ("0 3 * * fri-sun", [2, 3, 4]),
        ("0 3 * * 5-7", [2, 3, 4]),
        ("0 3 * * mon,3", [5, 7, 12]),
        ("0 3 * * */3", [3, 4, 7]),
        ("0 3 * * 1-6/2", [2, 5, 7]),
        ("0 3 10,20 * *", [10, 20]),
        ("0 3 10 * 1", [5, 10, 12]),  # either of the two
        ("0 3 */10 * 0", [11]),  # both: one begins with a star
        ("@weekly", [4, 11, 18]),
    ],
)
def test_weekdays_and_days_are_those_of_cron(cron, dates):
    new_year = datetime(2026, 1, 1, tzinfo=UTC)  # a Thursday
    due = schedule.next_due(schedule.build_trigger(UpdaterSettings(schedule=cron)), new_year, len(dates))
    assert [(each.month, each.day) for each in due] == [(1, date) for date in dates]


def test_a_schedule_keeps_to_the_clock_of_its_time_zone():
    settings = UpdaterSettings(schedule="0 3 * * *", schedule_timezone="Europe/Berlin")
    due = schedule.next_due(schedule.build_trigger(settings), datetime(2026, 3, 28, tzinfo=UTC), 2)
    assert [each.astimezone(UTC).hour for each in due] == [2, 1]  # summer time begins between the two


def test_labels_of_suspects_make_an_update_come_due_once(table, other_host):
    assert schedule.request_labelled(table, "alarm", lambda since: 0, 1) is None
    run = schedule.request_labelled(table, "alarm", lambda since: 3, 1)
    assert (run.trigger, run.slot) == ("alarm", "alarm/0")
    assert (
        schedule.request_labelled(other_host, "alarm", lambda since: 3, 1) is None
    )  # queued: it will see them itself


def test_an_alarm_asks_for_an_update_where_that_is_set_and_never_without_labels(table, monkeypatch):
    monkeypatch.setattr(schedule, "POLL_S", 0.05)
    settings = UpdaterSettings(after_alarm=True)
    labelled = 0
    asked = threading.Event()

    def since(seen):
        asked.set()
        return labelled

    scheduler = schedule.start(settings, table, nothing, since, no_drift)
    try:
        assert asked.wait(20)
        assert table.newest(1) == []
        labelled = 1
        for _ in range(400):
            if table.newest(1):
                break
            threading.Event().wait(0.05)
        assert table.newest(1)[0].trigger == "alarm"
    finally:
        scheduler.shutdown()


def test_a_drift_makes_one_update_come_due_unless_one_was_asked_for_since_or_it_is_old(table, other_host):
    minute = timedelta(minutes=1)
    drift = utc_now() - minute
    assert schedule.request_drifted(table, no_drift, drift) is None
    assert schedule.request_drifted(table, lambda: drift, drift + 61 * minute) is None
    run = schedule.request_drifted(table, lambda: drift, drift + 59 * minute)
    assert (run.trigger, run.slot) == ("drift", f"drift/{drift.isoformat()}")
    assert schedule.request_drifted(other_host, lambda: drift, drift) is None
    later = utc_now() + minute
    assert schedule.request_drifted(table, lambda: later, later) is None  # an update is queued
    table.finish(table.claim("one"), "failed", error="the disk was full")
    assert schedule.request_drifted(table, lambda: drift, drift) is None
    assert schedule.request_drifted(table, lambda: later, later).slot == f"drift/{later.isoformat()}"


def test_a_drift_asks_for_an_update_where_that_is_set_alone(table):
    for settings, job in (({"after_drift": True}, True), ({"after_alarm": True}, False)):
        scheduler = schedule.start(UpdaterSettings(**settings), table, nothing, nothing, no_drift)
        assert (scheduler.get_job("drift") is not None) == job
        scheduler.shutdown()

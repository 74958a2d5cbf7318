"""Who follows an update sees the stage that it is in, however long its lease is."""

import threading
import time

import pytest
from sqlalchemy import create_engine

from updater.lease import LeaseHeartbeat
from updater.runs import RunTable


@pytest.fixture
def table(either_database):
    engine = create_engine(either_database)
    yield RunTable(engine, lease_s=3600, max_takeovers=2)
    engine.dispose()


def test_a_stage_is_in_the_row_long_before_the_lease_must_be_renewed(table):
    run, _ = table.request("manual/1", "manual", "ann")
    lease = table.claim("here")
    shown = []
    with LeaseHeartbeat(table, lease, 3600, threading.Event(), lambda *at: shown.append(at)) as heartbeat:
        heartbeat.report("features", 3, 10)
        deadline = time.monotonic() + 120
        while (row := table.get(run.id)).stage != "features":
            assert time.monotonic() < deadline, row
            time.sleep(0.05)
    assert (row.done, row.total) == (3, 10)
    assert shown == [("features", 3, 10)]

import time
from datetime import UTC, datetime

import pynvml
import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import create_engine

from updater.gpus import devices
from updater.metrics import REGISTRY, Runs
from updater.records import NOT_LET_IN
from updater.runs import RunTable


@pytest.fixture
def table(either_database):
    engine = create_engine(either_database)
    yield RunTable(engine, lease_s=60, max_takeovers=2)
    engine.dispose()


def run_to(table, slot, state):
    table.request(slot, "manual", "ada")
    table.finish(table.claim("runner"), state)


def ended(registry, state):
    return registry.get_sample_value("forgewatch_updater_run_ended_timestamp_seconds", {"state": state})


def test_runs_and_when_the_latest_ended_are_what_the_database_says_when_asked(table):
    registry = CollectorRegistry()
    registry.register(Runs(table))
    assert registry.get_sample_value("forgewatch_updater_runs", {"state": "running"}) == 0
    assert ended(registry, "proposed") is None
    before = datetime.now(UTC).timestamp()
    for slot in ("1", "2"):
        run_to(table, slot, "refused")
    run_to(table, "3", "proposed")
    table.request("4", "manual", "ada")
    table.claim("runner")
    assert registry.get_sample_value("forgewatch_updater_runs", {"state": "running"}) == 1
    assert registry.get_sample_value("forgewatch_updater_runs", {"state": "refused"}) == 2
    assert before <= ended(registry, "refused") <= ended(registry, "proposed") <= time.time()
    assert ended(registry, "failed") is None


def test_an_update_that_waits_for_a_token_is_shown_until_it_is_taken_up_again(table):
    registry = CollectorRegistry()
    registry.register(Runs(table))
    table.request("1", "manual", "ada")
    for error, shown in ((None, 0), ("waits: deploy does not answer", 0), (f"waits: {NOT_LET_IN}", 1)):
        table.release(table.claim("runner"), error=error)
        assert registry.get_sample_value("forgewatch_updater_token_refused") == shown
    table.claim("runner")
    assert registry.get_sample_value("forgewatch_updater_token_refused") == 0


def test_a_database_that_is_gone_costs_the_samples_and_not_the_scrape(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    registry = CollectorRegistry()
    registry.register(Runs(RunTable(engine, lease_s=60, max_takeovers=2)))
    engine.dispose()
    (tmp_path / "runs.sqlite").write_bytes(b"no database" * 1000)
    assert registry.get_sample_value("forgewatch_updater_runs", {"state": "running"}) is None


def test_the_updaters_own_registry_says_how_its_process_does():
    started = REGISTRY.get_sample_value("process_start_time_seconds")
    assert 0 < time.time() - started < 86_400
    assert REGISTRY.get_sample_value("process_resident_memory_bytes") > 2**20


def has_driver():
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    pynvml.nvmlShutdown()
    return True


@pytest.mark.skipif(has_driver(), reason="this host has NVIDIA's driver")
def test_a_host_without_the_driver_has_no_gpu_metrics():
    assert devices() == []


@pytest.mark.skipif(not has_driver(), reason="this host has no NVIDIA GPU")
def test_each_gpu_shows_its_memory_and_its_use():
    registry = CollectorRegistry()
    (gpus,) = devices()
    registry.register(gpus)
    total = registry.get_sample_value("forgewatch_updater_gpu_memory_total_bytes", {"gpu": "0"})
    used = registry.get_sample_value("forgewatch_updater_gpu_memory_used_bytes", {"gpu": "0"})
    assert 2**30 < total < 2**40
    assert 0 <= used <= total
    assert 0 <= registry.get_sample_value("forgewatch_updater_gpu_utilization_ratio", {"gpu": "0"}) <= 1
    absent = {"gpu": str(pynvml.nvmlDeviceGetCount())}
    assert registry.get_sample_value("forgewatch_updater_gpu_memory_total_bytes", absent) is None

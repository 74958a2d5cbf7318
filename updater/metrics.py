"""The updater's Prometheus metrics. Seconds and ratios; every label has a fixed set of values."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import get_args

from prometheus_client import CollectorRegistry, Gauge

from ingest.process.frame import PROCESS
from updater.records import RunState
from updater.runs import RunTable

REGISTRY = CollectorRegistry()
REGISTRY.register(PROCESS)

RUNS = Gauge(
    "forgewatch_updater_runs",
    "Update runs by their state, as the database has them",
    ["state"],
    registry=REGISTRY,
)
STAGE_SECONDS = Gauge(
    "forgewatch_updater_stage_duration_seconds",
    "How long each stage of the last update took",
    ["stage"],
    registry=REGISTRY,
)
PROGRESS = Gauge(
    "forgewatch_updater_progress_ratio",
    "Part of the present stage that is done; 0 where no update runs",
    registry=REGISTRY,
)
WAITING = Gauge(
    "forgewatch_updater_exemplars_waiting",
    "Exemplars labelled since the labels that the last update saw",
    registry=REGISTRY,
)


def show_runs(table: RunTable) -> None:
    """Set the gauges of runs by state; a state in which no run is reads 0."""
    counted = table.count_by_state()
    for state in get_args(RunState):
        RUNS.labels(state).set(counted.get(state, 0))


@contextmanager
def timed(stage: str) -> Iterator[None]:
    """Set a stage's duration when it ends well."""
    started = time.monotonic()
    yield
    STAGE_SECONDS.labels(stage).set(time.monotonic() - started)

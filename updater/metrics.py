"""The updater's Prometheus metrics. Seconds and ratios; every label has a fixed set of values.

They have a registry of their own, since deploy imports this room and has metrics of its own to show.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import get_args

from prometheus_client import CollectorRegistry, Gauge, PlatformCollector, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy.exc import SQLAlchemyError

from ingest.process.frame import PROCESS
from updater.records import NOT_LET_IN, RunState
from updater.runs import RunTable

REGISTRY = CollectorRegistry()
REGISTRY.register(PROCESS)
ProcessCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)

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
DUE = Gauge(
    "forgewatch_updater_due_timestamp_seconds",
    "When the next scheduled update comes due, Unix time; 0: there is no schedule",
    registry=REGISTRY,
)


class Runs(Collector):
    """Counts the runs when it is scraped, so that every runner's writes show, also while one works."""

    def __init__(self, table: RunTable) -> None:
        self._table = table

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges by state; nothing where the database does not answer."""
        counts = GaugeMetricFamily(
            "forgewatch_updater_runs",
            "Update runs by their state, as the database has them",
            labels=["state"],
        )
        ended = GaugeMetricFamily(
            "forgewatch_updater_run_ended_timestamp_seconds",
            "When the latest of the runs that ended so did, Unix time; no sample where none has",
            labels=["state"],
        )
        refused = GaugeMetricFamily(
            "forgewatch_updater_token_refused", "1 where an update waits: deploy refuses the updater's token"
        )
        try:
            waiting = [run.error or "" for run in self._table.newest() if run.state == "queued"]
            counted, latest = self._table.count_by_state(), self._table.ended_by_state()
        except SQLAlchemyError:
            return
        for state in get_args(RunState):
            counts.add_metric([state], counted.get(state, 0))
        for state, at in latest.items():
            ended.add_metric([state], at.timestamp())
        refused.add_metric([], any(NOT_LET_IN in error for error in waiting))
        yield refused
        yield counts
        yield ended


@contextmanager
def time_stage(stage: str) -> Iterator[None]:
    """Set a stage's duration when it ends well."""
    started = time.monotonic()
    yield
    STAGE_SECONDS.labels(stage).set(time.monotonic() - started)

"""Prometheus gauges of how accurate the live release's verdicts of the last days were, by class."""

import time
from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from deploy.releases.ledger import Event, LedgerError
from deploy.releases.standing import replay
from memory.estimate.accuracy import accuracy
from memory.estimate.audits import count_waiting
from memory.store import Store, StoreUnavailableError

_DAYS = 7


class AccuracyGauges(Collector):
    """Estimates when it is scraped; history gives the ledger's events."""

    def __init__(self, history: Callable[[], Sequence[Event]], memory: Store) -> None:
        self._history, self._memory = history, memory

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges; nothing where a database does not answer."""
        gauge = GaugeMetricFamily(
            "forgewatch_deploy_accuracy",
            f"Share of the live release's verdicts of the last {_DAYS} days that are right, by what they "
            "said (empty: all), by the audit; with its 95 % interval. None where it is not known",
            labels=["class", "bound"],
        )
        try:
            live = replay(self._history()).live
            with self._memory.read() as connection:
                waiting = count_waiting(connection)
                told = live and accuracy(connection, live.digest, time.time_ns() // 10**6, _DAYS)
        except (LedgerError, StoreUnavailableError):
            return
        if told:
            for name, estimate in {"": told.over_all, **told.classes}.items():
                for bound in ("value", "low", "high") if estimate.corrected else ():
                    gauge.add_metric([name, bound], getattr(estimate.corrected, bound))
        yield gauge
        yield GaugeMetricFamily(
            "forgewatch_deploy_audits_waiting",
            "Verdicts that were drawn for the audit and wait for a label.",
            value=waiting,
        )

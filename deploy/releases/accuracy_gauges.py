"""Prometheus gauges of how accurate the live release's verdicts of the last days were, by class."""

import time
from collections.abc import Callable, Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from deploy.releases.ledger import Event, LedgerError
from deploy.releases.standing import fold
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
            "said (empty: all): by probabilities, or corrected by the audit; with its 95 % interval",
            labels=["class", "by", "bound"],
        )
        holds = GaugeMetricFamily(
            "forgewatch_deploy_accuracy_probabilities_hold",
            "1 while no shift alarm stands for the live release, else what probabilities say does not hold",
        )
        try:
            live = fold(self._history()).live
            with self._memory.read() as connection:
                waiting = count_waiting(connection)
                told = live and accuracy(connection, live.digest, time.time_ns() // 10**6, _DAYS)
        except (LedgerError, StoreUnavailableError):
            return
        if told:
            for name, estimate in {"": told.over_all, **told.classes}.items():
                for by, share in (("probabilities", estimate.probabilities), ("audit", estimate.corrected)):
                    for bound in ("value", "low", "high") if share else ():
                        gauge.add_metric([name, by, bound], getattr(share, bound))
            holds.add_metric([], told.over_all.broken_since is None)
        yield gauge
        yield holds
        yield GaugeMetricFamily(
            "forgewatch_deploy_audits_waiting",
            "Verdicts that were drawn for the audit and wait for a label.",
            value=waiting,
        )

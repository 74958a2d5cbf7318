"""Prometheus metrics of the deploy server, on their own port."""

import time
from collections import Counter as Counts
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import get_args

from prometheus_client import Counter, Gauge
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from deploy.release_records import STATES, WAITING, Action
from deploy.releases.artifacts import StoreError
from deploy.releases.evidence import Evaluations, EvidenceError
from deploy.releases.ledger import Event, LedgerError
from deploy.releases.standing import replay
from detector.release.artifact import version_of
from memory.estimate.accuracy import accuracy
from memory.estimate.audits import count_waiting
from memory.store import Store, StoreUnavailableError


class AccuracyGauges(Collector):
    """Estimates when it is scraped; history gives the ledger's events."""

    def __init__(self, history: Callable[[], Sequence[Event]], memory: Store) -> None:
        self._history, self._memory = history, memory

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauges; nothing where a database does not answer."""
        gauge = GaugeMetricFamily(
            "forgewatch_deploy_accuracy",
            "Share of the live release's verdicts of the last seven days that are right, by "
            "label (empty: all), by the audit; with its 95 % interval. None where it is not known",
            labels=["class", "bound"],
        )
        try:
            live = replay(self._history()).live
            with self._memory.read() as connection:
                waiting = count_waiting(connection)
                estimates = live and accuracy(connection, live.digest, time.time_ns() // 10**6, 7)
        except (LedgerError, StoreUnavailableError):
            return
        if estimates:
            for name, estimate in {"": estimates.over_all, **estimates.classes}.items():
                for bound in ("value", "low", "high") if estimate.corrected else ():
                    gauge.add_metric([name, bound], getattr(estimate.corrected, bound))
        yield gauge
        yield GaugeMetricFamily(
            "forgewatch_deploy_audits_waiting",
            "Verdicts that were drawn for the audit and wait for a label.",
            value=waiting,
        )


RELEASES = Gauge("forgewatch_deploy_releases", "releases by state", ["state"])
MOVES = Counter("forgewatch_deploy_moves", "events of the ledger that this server wrote", ["action"])
REFUSALS = Counter("forgewatch_deploy_refusals", "moves that the rules forbade")
EPOCH = Gauge("forgewatch_deploy_epoch", "the ledger's epoch: it rises where the topic had another's record")
LEDGER_SEQUENCE = Gauge("forgewatch_deploy_ledger_sequence", "sequence number of the ledger's last event")
PUBLISHED_SEQUENCE = Gauge(
    "forgewatch_deploy_published_sequence", "sequence number of the rollout last seen on the releases topic"
)
TOPIC_AGREES = Gauge(
    "forgewatch_deploy_releases_topic_agrees",
    "1 while the releases topic is known to name the ledger's release",
)
PUBLISH_FAILURES = Counter(
    "forgewatch_deploy_publish_failures", "failed tries to bring the releases topic to the ledger's state"
)
SERVE = Gauge(
    "forgewatch_deploy_serve",
    "1 for the release that each slot is to serve by the ledger; its short name, as the detectors have it",
    ["slot", "release"],
)
PROPOSED_SINCE = Gauge(
    "forgewatch_deploy_proposed_since_timestamp_seconds",
    "Since when the oldest of the releases that wait for a person does, Unix time; 0: none waits",
)
UPLOADED_BYTES = Counter("forgewatch_deploy_uploaded_bytes", "bytes of artifact files received")

# A counter that first shows with its first events has no increase that a rate would see.
for _action in get_args(Action):
    MOVES.labels(_action)


def show(events: Sequence[Event]) -> None:
    """Bring the gauges to the ledger's state."""
    standing = replay(events)
    slots = {
        "stable": standing.live_history[-1] if standing.live_history else None,
        "canary": standing.trial.release if standing.trial else None,
    }
    served = {(slot, version_of(digest)) for slot, digest in slots.items() if digest}
    exported = {(sample.labels["slot"], sample.labels["release"]) for sample in _samples(SERVE)}
    for slot, release in exported - served:
        SERVE.remove(slot, release)
    for slot, release in served:
        SERVE.labels(slot, release).set(1)
    waiting = [release.since for release in standing.releases.values() if release.state in WAITING]
    PROPOSED_SINCE.set(min(waiting).timestamp() if waiting else 0)
    states = Counts(release.state for release in standing.releases.values())
    for state in STATES:
        RELEASES.labels(state).set(states[state])
    EPOCH.set(standing.epoch)
    LEDGER_SEQUENCE.set(len(events))


class EvaluationGauges(Collector):
    """Figures of the scoring release and the one before, from the stored evaluations.

    history gives the ledger's events.
    """

    def __init__(self, history: Callable[[], Sequence[Event]], evaluations: Evaluations) -> None:
        self._history, self._evaluations = history, evaluations

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauge; without evaluations that cannot be read, or differ from the approved ones."""
        gauge = GaugeMetricFamily(
            "forgewatch_deploy_evaluation",
            "What the live release and the one before made of held-back items, in 0..1; af is the change "
            "since the release before, negative: forgotten",
            labels=["role", "measure"],
        )
        try:
            standing = replay(self._history())
        except LedgerError:
            return
        roles = dict(zip(("live", "previous"), reversed(standing.live_history), strict=False))
        for role, digest in roles.items():
            with suppress(StoreError, EvidenceError, OSError):
                for measure, value in self._evaluations.figures_of(standing.releases[digest]).items():
                    gauge.add_metric([role, measure], value)
        yield gauge


def _samples(gauge: Gauge) -> Sequence[Sample]:
    return [sample for metric in gauge.collect() for sample in metric.samples]

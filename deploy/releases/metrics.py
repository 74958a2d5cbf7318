"""Prometheus metrics of the deploy server, on their own port."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import get_args

from prometheus_client import Counter, Gauge
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample
from pydantic import ValidationError

from deploy.records import PROPOSED, STATES, Action, Release
from deploy.releases.approval import fold
from deploy.releases.artifacts import StoreError
from deploy.releases.ledger import Event, LedgerError
from detector.release.artifact import version_of
from updater.candidate.report import Measure, figures
from updater.records import Evaluation

RELEASES = Gauge("forgewatch_deploy_releases", "releases by state", ["state"])
MOVES = Counter("forgewatch_deploy_moves", "events of the ledger that this server wrote", ["action"])
REFUSALS = Counter("forgewatch_deploy_refusals", "moves that the rules forbade")
EPOCH = Gauge(
    "forgewatch_deploy_epoch", "the ledger's epoch: it rises where the releases topic had another's record"
)
LEDGER_SEQUENCE = Gauge("forgewatch_deploy_ledger_sequence", "sequence number of the ledger's last event")
PUBLISHED_SEQUENCE = Gauge(
    "forgewatch_deploy_published_sequence", "sequence number of the rollout last seen on the releases topic"
)
TOPIC_AGREES = Gauge(
    "forgewatch_deploy_releases_topic_agrees",
    "1 while the releases topic is known to name what the ledger says",
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
    "Since when the oldest of the releases that wait for an approval does, Unix time; 0: none waits",
)
UPLOADED_BYTES = Counter("forgewatch_deploy_uploaded_bytes", "bytes of artifact files received")

# A counter that first shows with its first events has no increase that a rate would see.
for _action in get_args(Action):
    MOVES.labels(_action)


def show(events: Sequence[Event]) -> None:
    """Bring the gauges to the ledger's state."""
    standing = fold(events)
    live = standing.live_history[-1] if standing.live_history else None
    served = {("stable", version_of(live))} if live else set()
    shown = {(sample.labels["slot"], sample.labels["release"]) for sample in _samples(SERVE)}
    for slot, release in shown - served:
        SERVE.remove(slot, release)
    for slot, release in served:
        SERVE.labels(slot, release).set(1)
    waiting = [release.since for release in standing.releases.values() if release.state in PROPOSED]
    PROPOSED_SINCE.set(min(waiting).timestamp() if waiting else 0)
    for state in STATES:
        RELEASES.labels(state).set(sum(release.state == state for release in standing.releases.values()))
    EPOCH.set(standing.epoch)
    LEDGER_SEQUENCE.set(len(events))


class Evaluations(Collector):
    """What the releases that score and scored were measured at, from the stored evaluations.

    history gives the ledger's events; stored the bytes of a release's evaluation.json, by its digest.
    """

    def __init__(self, history: Callable[[], Sequence[Event]], stored: Callable[[str], bytes]) -> None:
        self._history, self._stored = history, stored
        self._known: dict[str, dict[Measure, float]] = {}

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield the gauge; without what cannot be read, or is not what was approved."""
        gauge = GaugeMetricFamily(
            "forgewatch_deploy_evaluation",
            "What the live release and the one before made of held-back items, in 0..1; af is the change "
            "since the release before, negative: forgotten",
            labels=["role", "measure"],
        )
        try:
            standing = fold(self._history())
        except LedgerError:
            return
        roles = dict(zip(("live", "previous"), reversed(standing.live_history), strict=False))
        self._known = {digest: self._known[digest] for digest in roles.values() if digest in self._known}
        for role, digest in roles.items():
            if digest not in self._known and (found := self._read(standing.releases[digest])):
                self._known[digest] = found
            for measure, value in self._known.get(digest, {}).items():
                gauge.add_metric([role, measure], value)
        yield gauge

    def _read(self, release: Release) -> dict[Measure, float] | None:
        try:
            data = self._stored(release.digest)
            if hashlib.sha256(data).hexdigest() != release.candidate.evaluation_digest:
                return None
            return figures(Evaluation.model_validate_json(data))
        except (StoreError, OSError, ValidationError):
            return None


def _samples(gauge: Gauge) -> Sequence[Sample]:
    return [sample for metric in gauge.collect() for sample in metric.samples]

"""Prometheus metrics of the deploy server, on their own port."""

from collections.abc import Sequence
from typing import get_args

from prometheus_client import Counter, Gauge

from deploy.releases.approval import fold
from deploy.releases.ledger import Event
from deploy.releases.records import STATES, Action

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
UPLOADED_BYTES = Counter("forgewatch_deploy_uploaded_bytes", "bytes of artifact files received")

# A counter that first shows with its first events has no increase that a rate would see.
for _action in get_args(Action):
    MOVES.labels(_action)


def show(events: Sequence[Event]) -> None:
    """Bring the gauges to the ledger's state."""
    standing = fold(events)
    for state in STATES:
        RELEASES.labels(state).set(sum(release.state == state for release in standing.releases.values()))
    EPOCH.set(standing.epoch)
    LEDGER_SEQUENCE.set(len(events))

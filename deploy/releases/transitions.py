"""Moves are written to the ledger, told to the log and the metrics, and the releases topic follows."""

import structlog

from deploy.releases import metrics
from deploy.releases.ledger import Decide, Event, Ledger
from deploy.releases.publish import Publisher

log = structlog.get_logger()


def make_moves(ledger: Ledger, publisher: Publisher, decide: Decide) -> tuple[Event, ...]:
    """Let `decide` look at the ledger and append its moves; raises what it and the ledger raise."""
    appended = ledger.append(decide)
    for event in appended:
        metrics.MOVES.labels(event.move.action).inc()
        log.info(
            "release moved",
            sequence=event.sequence,
            action=event.move.action,
            digest=event.move.digest,
            actor=event.move.actor,
            reason=event.move.reason,
            accepted=event.move.accepted,
        )
    if appended:
        publisher.wake()
        metrics.show(ledger.events())
    return appended

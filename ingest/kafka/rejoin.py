"""Keeps kafka-python 3.0 a member of its group where it would stand outside for ever and say nothing.

A member that made the assignment rejoins when the topic's partitions have changed. It knows so by comparing
them with those of its last assignment, so it finds no reason once it made the new one. A poll that ends
between that and the broker's answer leaves the rejoin half done: nothing is assigned, no heartbeat is sent,
the broker puts the member out, and no later poll sees anything to do. Java's client had the same fault
(KAFKA-9815); here, as there, what was once found stays on record until the rejoin is complete.
"""

from typing import Any

from kafka.coordinator.consumer import ConsumerCoordinator

_finds_reason = ConsumerCoordinator.need_rejoin


def complete_rejoins() -> None:
    """Make every consumer of this process complete each rejoin that it begins; harmless when repeated."""
    ConsumerCoordinator.need_rejoin = _needs_rejoin


def _needs_rejoin(self: Any) -> bool:
    needed = bool(_finds_reason(self))
    if needed:
        self.request_rejoin()
    return needed

"""A webhook's place in the record, and which of several servers may send."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from deploy.notices.outbox import Outbox
from deploy.record.record import Record


def test_a_lease_is_taken_over_once_it_is_over_or_given_back(record: Record, receiver) -> None:
    now, lease = datetime.now(UTC), timedelta(seconds=30)
    one, other = (Outbox(record, receiver.webhook(), lease) for _ in range(2))
    one.open()
    other.open()
    assert (one.claim(now), other.claim(now), one.claim(now)) == (0, None, 0)
    one.release()
    assert (other.claim(now), one.claim(now + lease)) == (0, None)
    assert one.claim(now + 2 * lease) == 0


def test_a_cursor_moves_forward_alone(record: Record, receiver, act: Callable[[int], list[str]]) -> None:
    act(3)
    outbox = Outbox(record, receiver.webhook())
    outbox.open()
    act(3)
    for place in (9, 7):
        outbox.pass_on(place, taken=None)
    assert outbox.until() == 9

"""The pending notices of each webhook: the record itself is the outbox, with one cursor a webhook.

Everything that webhooks are told of is an act of the record, which is written in the transaction of the act,
in one order, and never changed. So there is no second table of notices that could lack one, hold half of one
or grow while nobody takes any: a notice, its id included, follows from its row. A cursor moves once its
webhook took the notice, so that a killed server sends one a second time, and loses none.

One server at a time sends to a webhook: whoever holds its row's lease. The clocks of the servers decide that
a lease is over; where they differ by more than its length, a notice is sent twice, under the same id.
"""

import hashlib
import json
import secrets
from datetime import UTC, datetime, timedelta

from sqlalchemy import BigInteger, Column, ColumnElement, Connection, String, Table, func, or_, select, update

from deploy.notice_records import Webhook, WebhookState
from deploy.notices.telling import TYPES, ActMessage
from deploy.record.chain import head_of, metadata, record
from deploy.record.record import Record
from deploy.rollout_records import Plan
from updater.schema import UtcDateTime

cursors = Table(
    "deploy_webhooks",
    metadata,
    Column("webhook", String(64), primary_key=True),  # SHA-256 of its URL, which is a secret
    Column("until", BigInteger, nullable=False),  # it has taken all acts up to this one
    Column("taken_at", UtcDateTime),
    Column("error", String(300)),  # of the last try
    Column("holder", String(32)),  # the server that sends to it, until then
    Column("held_until", UtcDateTime),
)

LEASE = timedelta(seconds=30)
"""More than one try takes."""


class Outbox:
    """One webhook's pending notices, as one server sees them. All methods raise RecordError."""

    def __init__(self, record: Record, webhook: Webhook, lease: timedelta = LEASE) -> None:
        self._record, self._lease = record, lease
        self._key = hashlib.sha256(webhook.url.get_secret_value().encode()).hexdigest()
        self._here = cursors.c.webhook == self._key
        self._holder = secrets.token_hex(16)

    def open(self) -> None:
        """Begin the cursor of a webhook that is new here: it is told of acts from now on."""
        with self._record.write() as connection:
            head = head_of(connection, record)
            if connection.execute(select(cursors.c.webhook).where(self._here)).first() is None:
                connection.execute(cursors.insert().values(webhook=self._key, until=head.size))

    def until(self) -> int:
        """The act that the webhook took last."""
        with self._record.read() as connection:
            return _until(connection, self._here)

    def next(self, after: int) -> ActMessage | None:
        """The first act after this one that the webhook is told of."""
        with self._record.read() as connection:
            return _next(connection, after)

    def claim(self, now: datetime) -> int | None:
        """Take the webhook's lease, or hold it for longer; return the act that was taken last.

        None: another server has the lease.
        """
        free = or_(cursors.c.holder.is_(None), cursors.c.holder == self._holder, cursors.c.held_until < now)
        held = {"holder": self._holder, "held_until": now + self._lease}
        with self._record.write() as connection:
            ours = connection.execute(update(cursors).where(self._here & free).values(held)).rowcount
            return _until(connection, self._here) if ours else None

    def pass_on(self, act: int, *, taken: datetime | None) -> None:
        """Move the cursor to an act, which the webhook took, or which is left out."""
        values = {"until": act, "error": None} | ({"taken_at": taken} if taken else {})
        with self._record.write() as connection:
            # Of two servers that both believe in their lease, the slower one moves nothing back.
            forward = self._here & (cursors.c.until < act)
            connection.execute(update(cursors).where(forward).values(values))

    def fail(self, error: str) -> None:
        """Note why a try failed."""
        with self._record.write() as connection:
            connection.execute(update(cursors).where(self._here).values(error=error[:300]))

    def release(self) -> None:
        """Give the lease back, so that another server goes on at once."""
        with self._record.write() as connection:
            ours = self._here & (cursors.c.holder == self._holder)
            connection.execute(update(cursors).where(ours).values(holder=None))

    def state(self, number: int, webhook: Webhook) -> WebhookState:
        """How the webhook stands."""
        with self._record.read() as connection:
            row = connection.execute(select(cursors).where(self._here)).one()
            waiting = record.c.action.in_(TYPES) & (record.c.sequence > row.until)
            count = connection.scalar(select(func.count()).select_from(record).where(waiting)) or 0
            oldest = _next(connection, row.until)
        return WebhookState(
            number=number,
            host=webhook.host,
            form=webhook.form,
            until=row.until,
            taken_at=row.taken_at,
            waiting=count,
            waiting_since=oldest and oldest.at,
            error=row.error,
        )


def _until(connection: Connection, here: ColumnElement[bool]) -> int:
    return int(connection.scalars(select(cursors.c.until).where(here)).one())


def _next(connection: Connection, after: int) -> ActMessage | None:
    notified = record.c.action.in_(TYPES) & (record.c.sequence > after)
    row = connection.execute(select(record).where(notified).order_by(record.c.sequence).limit(1)).first()
    if row is None:
        return None
    return ActMessage(
        sequence=row.sequence,
        at=datetime.fromisoformat(row.at).astimezone(UTC),
        actor=row.actor,
        action=row.action,
        subject=row.subject,
        details=json.loads(row.details),
        # What the memory did keeps its own name in a record that was restored and is brought it again.
        id=row.origin or row.hash,
        plan=_plan(connection, row.subject, row.sequence) if row.action == "step" else None,
    )


def _plan(connection: Connection, release: str, before: int) -> Plan | None:
    """The plan of the rollout that a step belongs to."""
    begun = (record.c.action == "begin") & (record.c.subject == release) & (record.c.sequence < before)
    query = select(record.c.details).where(begun).order_by(record.c.sequence.desc()).limit(1)
    details = connection.execute(query).scalar()
    return Plan.model_validate(json.loads(details)["rollout"]["plan"]) if details else None

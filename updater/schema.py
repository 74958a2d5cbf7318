"""The SQL table of update runs, the same on SQLite and PostgreSQL. Changes are in migrations/."""

from datetime import UTC, datetime

from sqlalchemy import (
    BigInteger,
    Column,
    DateTime,
    Dialect,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    text,
)
from sqlalchemy.types import TypeDecorator


class UtcDateTime(TypeDecorator[datetime]):
    """An aware datetime, kept in UTC without its zone, which SQLite would drop in silence."""

    impl = DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Aware datetime of any zone -> naive UTC."""
        return None if value is None else value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Naive UTC -> aware UTC."""
        return None if value is None else value.replace(tzinfo=UTC)


metadata = MetaData()

runs = Table(
    "updater_runs",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("slot", String(200), nullable=False, unique=True),
    Column("trigger", String(20), nullable=False),
    Column("requested_by", String(200), nullable=False),
    Column("requested_at", UtcDateTime, nullable=False),
    Column("state", String(40), nullable=False),
    Column("runner", String(200)),
    Column("token", Integer, nullable=False, default=0),
    Column("takeovers", Integer, nullable=False, default=0),
    Column("lease_until", UtcDateTime),
    Column("started_at", UtcDateTime),
    Column("finished_at", UtcDateTime),
    Column("stage", String(40)),
    Column("done", Integer, nullable=False, default=0),
    Column("total", Integer, nullable=False, default=0),
    Column("labels_seen", BigInteger),
    Column("candidate", String(64)),
    Column("error", Text),
    # An id is in artifacts and in deploy's ledger: it must never come back after a row was deleted.
    sqlite_autoincrement=True,
)

# An update is measured against the live release, so two at once would be measured against the same
# one and the second would undo the first. The database holds it to one, not the runners.
Index(
    "updater_runs_one_running",
    runs.c.state,
    unique=True,
    sqlite_where=text("state = 'running'"),
    postgresql_where=text("state = 'running'"),
)

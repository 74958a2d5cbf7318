"""Watched sources are keyed by a digest, and each source may be as long as an attribute of a CloudEvent."""

import hashlib

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0015", "0014"


def upgrade() -> None:
    """Make the tables of watched sources anew, and widen the other columns.

    PostgreSQL takes no key of more than 2,704 bytes, and a source of 1,000 characters may have 4,000.
    """
    _keyed_by_digest("watched", sa.Column("seen", sa.Text, nullable=False))
    _keyed_by_digest("drift_watched")
    for name in ("exemplars", "verdicts"):
        _widen(name)


def _keyed_by_digest(name: str, *more: sa.Column[str]) -> None:
    bind = op.get_bind()
    kept = ["release", "source", "number", "test", *(column.name for column in more), "seen_ms"]
    old = sa.table(f"{name}_by_name", *map(sa.column, kept))
    op.drop_index(f"ix_{name}_seen_ms", name)
    op.rename_table(name, old.name)
    new = op.create_table(
        name,
        sa.Column("release", sa.String(64), primary_key=True),
        sa.Column("source_digest", sa.String(64), primary_key=True),
        sa.Column("source", sa.String(1024), nullable=False),
        sa.Column("number", sa.Integer, nullable=False),
        sa.Column("test", sa.LargeBinary, nullable=False),
        *more,
        sa.Column("seen_ms", sa.BigInteger, nullable=False, index=True),
    )
    for release, source in bind.execute(sa.select(old.c.release, old.c.source)).all():
        digest = sa.literal(hashlib.sha256(source.encode()).hexdigest())
        here = (old.c.release == release) & (old.c.source == source)
        row = sa.select(digest, *(old.c[column] for column in kept)).where(here)
        bind.execute(new.insert().from_select(["source_digest", *kept], row))
    op.drop_table(old.name)


def _widen(name: str) -> None:
    if op.get_bind().dialect.name != "sqlite":
        op.alter_column(name, "source", existing_nullable=False, type_=sa.String(1024))
        return
    # SQLite changes no type, and to make exemplars anew would drop what labels point at.
    table = sa.table(name, sa.column("source"), sa.column("wide"))
    op.execute(f"ALTER TABLE {name} ADD COLUMN wide VARCHAR(1024) NOT NULL DEFAULT ''")
    op.execute(sa.update(table).values(wide=table.c.source))
    op.execute(f"ALTER TABLE {name} DROP COLUMN source")
    op.execute(f"ALTER TABLE {name} RENAME COLUMN wide TO source")

"""The table of update runs as of version 0.1.0: the revisions before it are in this one."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0002", None


def upgrade() -> None:
    """Make the runs, of which one at most is running."""
    op.create_table(
        "updater_runs",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("slot", sa.String(200), nullable=False, unique=True),
        sa.Column("trigger", sa.String(20), nullable=False),
        sa.Column("requested_by", sa.String(200), nullable=False),
        sa.Column("requested_at", sa.DateTime, nullable=False),
        sa.Column("state", sa.String(40), nullable=False),
        sa.Column("runner", sa.String(200)),
        sa.Column("token", sa.Integer, nullable=False),
        sa.Column("takeovers", sa.Integer, nullable=False),
        sa.Column("lease_until", sa.DateTime),
        sa.Column("started_at", sa.DateTime),
        sa.Column("finished_at", sa.DateTime),
        sa.Column("stage", sa.String(40)),
        sa.Column("done", sa.Integer, nullable=False),
        sa.Column("total", sa.Integer, nullable=False),
        sa.Column("labels_seen", sa.BigInteger),
        sa.Column("candidate", sa.String(64)),
        sa.Column("error", sa.Text),
        sqlite_autoincrement=True,
    )
    running = sa.text("state = 'running'")
    op.create_index(
        "updater_runs_one_running",
        "updater_runs",
        ["state"],
        unique=True,
        sqlite_where=running,
        postgresql_where=running,
    )

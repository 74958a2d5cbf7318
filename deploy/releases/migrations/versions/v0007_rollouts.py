"""A move of a rollout says its plan, its step, what its checks showed."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0007", "0006"


def upgrade() -> None:
    """Add it; where there is none, a row's hash stays what it was."""
    op.add_column("deploy_ledger", sa.Column("rollout", sa.Text))

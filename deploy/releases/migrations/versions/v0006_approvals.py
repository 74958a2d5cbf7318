"""A proposal says who asked for it, and an approval what it binds and until when."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0006", "0005"


def upgrade() -> None:
    """Add both; where there is neither, a row's hash stays what it was."""
    op.add_column("deploy_ledger", sa.Column("requested_by", sa.String(200)))
    op.add_column("deploy_ledger", sa.Column("bound", sa.Text))

"""An approval says for each finding why it was accepted."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0003", "0002"


def upgrade() -> None:
    """Add the reasons; where there are none, a row's hash stays what it was."""
    op.add_column("deploy_ledger", sa.Column("accepted", sa.Text))

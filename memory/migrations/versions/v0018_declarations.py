"""What files declare of their own origin: of exemplars, and of verdicts."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0018", "0017"


def upgrade() -> None:
    """Add the columns; what came before declares nothing."""
    columns = {"declares": sa.String(20), "generator": sa.String(200), "signer": sa.String(200)}
    for name, kind in (columns | {"missed": sa.Boolean()}).items():
        op.add_column("exemplars", sa.Column(name, kind))
    op.create_index("by_declaration", "exemplars", ["declares", "shelf"])
    op.add_column("verdicts", sa.Column("declared", sa.String(20)))

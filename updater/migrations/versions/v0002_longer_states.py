"""A run's state may be a phrase: proposed with findings."""

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0002", "0001"


def upgrade() -> None:
    """Widen the column. SQLite makes the table anew for it, which is to go on counting where it was."""
    bind = op.get_bind()
    given = None
    if bind.dialect.name == "sqlite":
        given = bind.scalar(sa.text("SELECT seq FROM sqlite_sequence WHERE name = 'updater_runs'"))
    with op.batch_alter_table("updater_runs", table_kwargs={"sqlite_autoincrement": True}) as table:
        table.alter_column("state", existing_type=sa.String(20), existing_nullable=False, type_=sa.String(40))
    if given is not None:
        bind.execute(sa.text("DELETE FROM sqlite_sequence WHERE name = 'updater_runs'"))
        counting = sa.text("INSERT INTO sqlite_sequence (name, seq) VALUES ('updater_runs', :given)")
        bind.execute(counting, {"given": given})

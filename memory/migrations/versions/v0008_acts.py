"""What people do in the memory is written down for the record, with the labels that there are."""

import json
import secrets

import sqlalchemy as sa
from alembic import op

revision, down_revision = "0008", "0007"


def upgrade() -> None:
    """Add the table, and an act for each label and undo so far."""
    acts = op.create_table(
        "acts",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("uid", sa.String(32), nullable=False, unique=True),
        sa.Column("at_ms", sa.BigInteger, nullable=False),
        sa.Column("actor", sa.String(200), nullable=False),
        sa.Column("action", sa.String(40), nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("details", sa.Text, nullable=False),
    )
    labels = op.get_bind().execute(
        sa.text(
            "SELECT l.id, l.at_ms, l.actor, l.what, l.undoes, count(x.label) AS exemplars FROM labels l"
            " LEFT JOIN labelled x ON x.label = coalesce(l.undoes, l.id)"
            " GROUP BY l.id, l.at_ms, l.actor, l.what, l.undoes ORDER BY l.id"
        )
    )
    rows = [
        {
            "uid": secrets.token_hex(16),
            "at_ms": label.at_ms,
            "actor": label.actor,
            "action": "label" if label.undoes is None else "undo",
            "subject": f"label {label.undoes or label.id}",
            "details": json.dumps(
                {"label": label.id, "what": label.what, "undoes": label.undoes, "exemplars": label.exemplars}
            ),
        }
        for label in labels
    ]
    op.bulk_insert(acts, rows)

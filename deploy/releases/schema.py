"""The SQL tables of the ledger, the same on SQLite and PostgreSQL. Changes are in migrations/.

Append-only is held by triggers of the database as well, so that a slip of the hand in a SQL shell fails too.
"""

from sqlalchemy import (
    BigInteger,
    Column,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)

metadata = MetaData()
ledger = Table(
    "deploy_ledger",
    metadata,
    Column("sequence", Integer, primary_key=True, autoincrement=False),
    Column("at", String(40), nullable=False),
    Column("actor", String(200), nullable=False),
    Column("action", String(16), nullable=False),
    Column("digest", String(64), nullable=False),
    Column("evaluation_digest", String(64), nullable=False),
    Column("reason", Text),
    Column("candidate", Text),
    Column("epoch", BigInteger),
    Column("hash", String(64), nullable=False),
)
identity = Table("deploy_ledger_identity", metadata, Column("id", String(32), primary_key=True))
"""One row: the ledger's id, drawn at random when its tables were made. The hash chain begins with it."""

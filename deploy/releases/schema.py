"""The SQL tables of the ledger, the same on SQLite and PostgreSQL, and their hash chain.

Changes are in migrations/. Triggers of the database hold append-only, so that a slip of the hand in a SQL
shell fails too. Each row's hash covers the row and the hash before: who drops a trigger and changes a row
makes every later hash wrong. What the chain cannot show is that the newest rows are missing: the releases
topic then names a later rollout than the ledger (see deploy.releases.epoch).
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

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


def link(before: str, row: Mapping[str, Any]) -> str:
    """The hash of a row, SHA-256 in hexadecimal digits.

    before is the hash of the row before, for the first row the ledger's id. Columns that are null are
    left out, so that a column which is added later changes no hash.
    """
    told = {name: value for name, value in row.items() if value is not None and name != "hash"}
    text = json.dumps(told, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(f"{before}{text}".encode()).hexdigest()

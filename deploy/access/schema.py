"""The SQL tables of tokens and browser sessions, in deploy's database. Changes are in its migrations/.

Of a token and of a session's id only the SHA-256 is kept: whoever reads the database can act for nobody.
"""

from sqlalchemy import Column, String, Table

from deploy.record.chain import metadata
from updater.schema import UtcDateTime

tokens = Table(
    "deploy_tokens",
    metadata,
    Column("hash", String(64), primary_key=True),
    Column("name", String(200), nullable=False),
    Column("role", String(16), nullable=False),
    Column("made_at", UtcDateTime, nullable=False),
    Column("made_by", String(200), nullable=False),
    Column("expires_at", UtcDateTime, nullable=False),
    Column("used_at", UtcDateTime),
    Column("revoked_at", UtcDateTime),
    Column("revoked_by", String(200)),
)
"""No row is ever deleted: a stack that had a person's token once is never again open to everybody."""

sessions = Table(
    "deploy_sessions",
    metadata,
    Column("hash", String(64), primary_key=True),
    Column("token", String(64), nullable=False),
    Column("begun_at", UtcDateTime, nullable=False),
    Column("seen_at", UtcDateTime, nullable=False),
)
"""token: the hash of the one that began the session; what ends the token ends the session."""

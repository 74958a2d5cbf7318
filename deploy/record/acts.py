"""The record: every act of every room, in order, with who did it, to what, and when.

Whoever acts appends in the transaction of the act, so that neither is there without the other. The memory's
acts come by way of a table of its own (memory.acts), from which `deploy.record.rooms` brings them in.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Column, Connection, Index, Integer, String, Table, Text

from deploy.record.chain import head_of, link_rows, metadata

record = Table(
    "deploy_record",
    metadata,
    Column("sequence", Integer, primary_key=True, autoincrement=False),
    Column("at", String(40), nullable=False),
    Column("actor", String(200), nullable=False),
    Column("action", String(40), nullable=False),
    Column("subject", String(300), nullable=False),
    Column("details", Text, nullable=False),
    # Of an act that several tries or servers would put here: what tells it from every other. Twice is once.
    Column("origin", String(32), unique=True),
    Column("hash", String(64), nullable=False),
    Index("deploy_record_by_actor", "actor", "sequence"),
    Index("deploy_record_by_action", "action", "sequence"),
)

_LONGEST_SUBJECT = 300


@dataclass(frozen=True)
class Act:
    """What is to be put on record.

    actor did `action` (a word or two, such as `label` or `revoke token`) to `subject` (such as `label 7`).
    details become JSON. at is when it was done, by default now; origin: see the table.
    """

    actor: str
    action: str
    subject: str
    details: Mapping[str, Any] = field(default_factory=dict)
    at: datetime | None = None
    origin: str | None = None


def append(connection: Connection, *acts: Act) -> None:
    """Put acts on record in the caller's transaction of deploy's database: with it, or not at all.

    Every other writer of that database waits until the transaction ends; so append last.
    """
    head = head_of(connection, record)
    rows = link_rows(head, map(_to_row, acts))
    if rows:
        connection.execute(record.insert(), rows)


def _to_row(act: Act) -> dict[str, Any]:
    # A source or a file may have any name; as it was given it may stand in the details, which are ASCII.
    subject = "".join(c if c.isprintable() else "�" for c in act.subject)[:_LONGEST_SUBJECT]
    return {
        "at": (act.at or datetime.now(UTC)).isoformat(timespec="microseconds"),
        "actor": act.actor,
        "action": act.action,
        "subject": subject,
        "details": json.dumps(act.details, sort_keys=True),
        "origin": act.origin,
    }

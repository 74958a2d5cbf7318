"""People's acts in the memory, and its alarms, for the record of all rooms, in the transaction of the act.

Deploy's server brings these rows into its hash-chained record (deploy.record), by the uid each one once.
"""

import hashlib
import json
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, insert, select

from memory.rows import now_ms, utc_time
from memory.schema import acts

MEMORY = "memory"
"""Whose act it is that no person did."""


@dataclass(frozen=True)
class MemoryAct:
    """Actor, action and subject. id grows in the order of the transactions; uid is drawn at random."""

    id: int
    uid: str
    at: datetime
    actor: str
    action: str
    subject: str
    details: dict[str, Any]


def append(
    connection: Connection, actor: str, action: str, subject: str, details: Mapping[str, Any] | None = None
) -> None:
    """Put an act on record in the caller's transaction (`Store.write`, `note`): with it, or not at all.

    action is a word or two, such as `label` or `purge`; details become JSON.
    """
    row = {"actor": actor, "action": action, "subject": subject, "details": json.dumps(details or {})}
    connection.execute(insert(acts).values(**row, uid=secrets.token_hex(16), at_ms=now_ms()))


def acts_after(connection: Connection, id_: int, limit: int) -> list[MemoryAct]:
    """The acts that came after the one of this id, the oldest first."""
    query = select(acts).where(acts.c.id > id_).order_by(acts.c.id).limit(limit)
    return [
        MemoryAct(
            row.id, row.uid, utc_time(row.at_ms), row.actor, row.action, row.subject, json.loads(row.details)
        )
        for row in connection.execute(query)
    ]


def as_fields(ids: Iterable[str]) -> dict[str, Any]:
    """Details that bind an act to exactly these exemplars: their count, and a digest of their ids."""
    names = sorted(ids)
    digest = hashlib.sha256("\n".join(names).encode()).hexdigest()
    return {"exemplars": len(names), "exemplars_digest": digest}

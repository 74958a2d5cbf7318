"""The audit: drawn verdicts wait for a person, who sees the verdict once the item is labelled."""

from sqlalchemy import Connection, func, select, update

from memory import acts
from memory.estimate.records import AuditDone, AuditItem
from memory.estimate.sums import DAY_MS
from memory.labels import checked_name
from memory.records import IGNORE
from memory.rows import now_ms, utc_time
from memory.schema import audits
from memory.store import ExemplarMemoryError, Store

CANNOT_SAY = "cannot-say"
"""Such an item counts as wrong at the interval's low end and as right at its high end."""

OPEN_DAYS = 7
"""after the first label of an item, in which a later one replaces it"""


class AuditError(ExemplarMemoryError):
    """Fatal for the request: the verdict cannot be audited so; the text says why."""


def waiting(connection: Connection, most: int) -> list[AuditItem]:
    """Return waiting verdicts, the oldest first: the estimate goes on only up to the oldest."""
    columns = audits.c.id, audits.c.source, audits.c.at_ms, audits.c.media_digest
    query = select(*columns).where(audits.c.label.is_(None)).order_by(audits.c.at_ms, audits.c.id)
    return [
        AuditItem(**row._mapping, at=utc_time(row.at_ms)) for row in connection.execute(query.limit(most))
    ]


def count_waiting(connection: Connection) -> int:
    return connection.scalar(select(func.count()).where(audits.c.label.is_(None))) or 0


def newest_audited(connection: Connection, most: int) -> list[AuditDone]:
    """Return labelled verdicts, the newest first."""
    columns = audits.c.id, audits.c.release, audits.c.called, audits.c.probability, audits.c.label
    query = select(*columns).where(audits.c.label.is_not(None)).order_by(audits.c.labelled_ms.desc())
    return [AuditDone(**row._mapping) for row in connection.execute(query.limit(most))]


def drawn_media(connection: Connection, id_: str) -> str | None:
    """Return the digest of the media of a drawn verdict; None where that was not drawn."""
    return connection.scalar(select(audits.c.media_digest).where(audits.c.id == id_))


def label_audit(store: Store, id_: str, name: str, actor: str) -> AuditDone:
    """Label an audited item: real, a family, or that nobody can say.

    A later label replaces the former for OPEN_DAYS after the first; both stay on record.

    Raises AuditError, memory.labels.LabelError or StoreUnavailableError.
    """
    if name != CANNOT_SAY and checked_name(name) == IGNORE:
        raise AuditError(f"an audited item is real, a family, or {CANNOT_SAY}")
    with store.write() as connection:
        row = connection.execute(select(audits).where(audits.c.id == id_)).first()
        if row is None:
            raise AuditError(f"{id_[:300]} was not drawn for the audit, or left it by age")
        if row.label == name:
            raise AuditError(f"{id_} was called {name} by {row.actor} already")
        now, first_ms = now_ms(), row.labelled_ms
        if first_ms is not None and now >= first_ms + OPEN_DAYS * DAY_MS:
            raise AuditError(f"{id_} was called {row.label} more than {OPEN_DAYS} days ago: it stands")
        values = {"label": name, "actor": actor.strip()[:200], "labelled_ms": first_ms or now}
        connection.execute(update(audits).where(audits.c.id == id_).values(values))
        details = {"label": name, "called": row.called, "release": row.release}
        if row.label is not None:
            details["instead_of"] = row.label
        acts.append(connection, actor, "audit", id_, details)
    return AuditDone(**{**row._mapping, "label": name, "instead_of": row.label})

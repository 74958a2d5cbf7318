"""Declarations of files that a generative model made them: claims that propose a label, and show misses."""

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import suppress

import structlog
from sqlalchemy import Connection, func, select

from detector.records import Verdict
from memory.contradictions import contradicting
from memory.labels import UNDONE, LabelError, checked_name, give
from memory.records import IGNORE, REAL, Declarations, Declared, Exemplar
from memory.rows import count_by, exemplars_of
from memory.schema import exemplars, labelled, labels

log = structlog.get_logger()

ACTOR = "declaration"
"""Who labels by declaration. Once a person undoes such a label, its family gets no more of them."""
MAX_PER_SIGNER = 1000
"""Exemplars that get their label by a signer's declaration, however much it signs."""
_NAMES = 5
_WAITS = exemplars.c.declares.in_(("generated", "edited_with_ai")) & (exemplars.c.shelf == "unknown")


def declaration_of(verdict: Verdict) -> Declared:
    """Return the declaration of generation that a verdict's file bears."""
    by_file = verdict.provenance
    if (declares := by_file.generation) is None:
        return Declared()
    signed = by_file.state.startswith("valid") and by_file.declares == declares
    unsigned = by_file.metadata.generator or by_file.metadata.software
    trusted = signed and by_file.state == "valid_trusted"
    return Declared.model_validate(
        {
            "declares": declares,
            "generator": by_file.generator if signed else unsigned,
            "signer": by_file.signer or by_file.issuer or "unnamed" if trusted else None,
            "missed": verdict.by_pixels == REAL,
        }
    )


def family_of(generator: str | None, declares: str) -> str:
    """Return a family's name for a generator: never real or ignore, whatever the file states."""
    slug = re.sub(r"[^a-z0-9]+", "-", (generator or "").lower())[:64].strip("-")
    with suppress(LabelError):
        if checked_name(slug) not in (REAL, IGNORE):
            return slug
    return declares.replace("_", "-")


def waiting_declarations(connection: Connection) -> dict[str, tuple[str | None, str]]:
    """Return the generator, and what is declared, of each waiting exemplar that declares generation."""
    query = select(exemplars.c.id, exemplars.c.generator, exemplars.c.declares).where(_WAITS)
    return {row.id: (row.generator, row.declares) for row in connection.execute(query)}


def sum_up(declared: Sequence[tuple[str | None, str]]) -> Declarations | None:
    """Sum up a cluster's declarations, each a generator and what is declared; None where there is none."""
    if not declared:
        return None
    ((commonest, _),) = Counter(declared).most_common(1)
    names = Counter(generator or "no name" for generator, _ in declared).most_common(_NAMES)
    return Declarations(items=len(declared), generators=dict(names), family=family_of(*commonest))


def missed_exemplars(connection: Connection, most: int) -> list[Exemplar]:
    """Return waiting exemplars that declare generation and whose pixels were called real, newest first."""
    newest = exemplars.c.received_ms.desc(), exemplars.c.id.desc()
    query = select(exemplars.c.id).where(_WAITS, exemplars.c.missed).order_by(*newest).limit(most)
    return exemplars_of(connection, connection.scalars(query).all())


def count_missed(connection: Connection) -> int:
    return connection.scalar(select(func.count()).where(_WAITS, exemplars.c.missed)) or 0


def label_declared(connection: Connection, ids: Sequence[str]) -> None:
    """Label those of these waiting exemplars that a trusted signer declares generated.

    In the caller's transaction (`Store.write`). Left to people: exemplars whose bytes or group have another
    class, families of which a person undid such a label, and a signer's exemplars beyond MAX_PER_SIGNER.
    """
    columns = exemplars.c.id, exemplars.c.signer, exemplars.c.generator, exemplars.c.declares
    mine = _WAITS & exemplars.c.signer.is_not(None) & exemplars.c.id.in_(ids)
    rows = connection.execute(select(*columns).where(mine).order_by(exemplars.c.id)).all()
    if not rows:
        return
    of_files = select(labels.c.id).where(labels.c.actor == ACTOR)
    labelled_so = exemplars.c.id.in_(select(labelled.c.exemplar).where(labelled.c.label.in_(of_files)))
    held = Counter(count_by(connection, exemplars.c.signer, labelled_so))
    undone = select(labels.c.what).where(labels.c.actor == ACTOR, labels.c.id.in_(UNDONE))
    refused, families = set(connection.scalars(undone)), defaultdict[str, list[str]](list)
    for row in rows:
        family = family_of(row.generator, row.declares)
        if family not in refused and held[row.signer] < MAX_PER_SIGNER:
            held[row.signer] += 1
            families[family].append(row.id)
    for family, members in families.items():
        left = contradicting(connection, members, family)
        if fit := [id_ for id_ in members if id_ not in left]:
            number = give(connection, fit, family, ACTOR, "refuse")
            log.info("exemplars labelled as declared", items=len(fit), family=family, label=number)

"""Unknowns whose verdict was taken back leave what waits for a person, on record, and can be brought back."""

from collections.abc import Sequence

import structlog
from sqlalchemy import Connection, select, tuple_

from detector.release.artifact import version_of
from memory import acts
from memory.labels import extend_label, open_label
from memory.records import IGNORE
from memory.rows import batches
from memory.schema import exemplars, verdicts
from memory.verdict_index import SUPERSEDED, item_of

ACTOR = "retraction"
"""Who ignores them; an undo of the label brings them back."""

log = structlog.get_logger()


def ignore_retracted(connection: Connection, ids: Sequence[str]) -> int:
    """Ignore those of these exemplars that wait, and whose verdict is superseded by none that says unknown.

    In the caller's transaction (`Store.write`), whichever of the exemplar and the correction came first.
    Returns how many.
    """
    those = [id_ for some in batches(ids) for id_ in _unlabelled_of(connection, some)]
    if those:
        number = open_label(connection, IGNORE, ACTOR)
        extend_label(connection, number, those)
        details = {"label": number, "what": IGNORE, **acts.as_fields(those)}
        acts.append(connection, ACTOR, "label", f"label {number}", details)
        log.info("unknowns whose verdicts were taken back are ignored", items=len(those), label=number)
    return len(those)


def _unlabelled_of(connection: Connection, ids: Sequence[str]) -> list[str]:
    waits = (exemplars.c.shelf == "unknown") & exemplars.c.crops_digest.is_not(None)
    rows = connection.execute(
        select(exemplars.c.id, exemplars.c.release).where(exemplars.c.id.in_(ids), waits)
    )
    said_by = {row.id: version_of(row.release) for row in rows if row.release is not None}
    items = {item: id_ for id_ in said_by if (item := item_of(id_)) is not None}
    if not items:
        return []
    at = tuple_(verdicts.c.item_partition, verdicts.c.item_offset)
    query = select(verdicts).where(at.in_(list(items))).order_by(verdicts.c.at_ms, verdicts.c.offset)
    superseded, newest = set[str](), dict[str, str]()
    for row in connection.execute(query):
        id_ = items[row.item_partition, row.item_offset]
        if row.label != SUPERSEDED:
            newest[id_] = row.label
        elif row.release == said_by[id_]:
            superseded.add(id_)
    return [id_ for id_ in said_by if id_ in superseded and newest.get(id_, "unknown") != "unknown"]

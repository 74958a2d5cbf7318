"""A producer that shifts for ever raises alarms for ever, and the database keeps few of them."""

import pytest
from sqlalchemy import Table, func, insert, select

from memory.schema import alarms, drift_alarms
from memory.shift import alarms as module
from memory.shift import drift

KINDS = {"shift": (alarms, module.put_announced), "drift": (drift_alarms, drift.put_announced)}
DATABASES = ("sqlite_url", "postgresql_url")


def raised(table: Table, announced: bool) -> dict[str, object]:
    texts = {"found": "{}"} if table is drift_alarms else {"raised": "{}", "suspects": "[]", "others": "[]"}
    return {**texts, "announced": announced}


@pytest.mark.parametrize("most", [module.MOST_ALARMS, 10**6])
@pytest.mark.parametrize("kind", KINDS)
def test_the_newest_thousand_alarms_are_kept_and_what_waits_to_be_told(store, monkeypatch, kind, most):
    """With the negative control: without the bound all of them are."""
    table, put_announced = KINDS[kind]
    monkeypatch.setattr(module, "MOST_ALARMS", most)
    with store.write_unversioned() as connection:
        connection.execute(insert(table), [raised(table, announced=number != 3) for number in range(1500)])
        newest = connection.scalar(select(func.max(table.c.id)))
        put_announced(connection, [newest])
        kept = connection.scalars(select(table.c.id).order_by(table.c.id)).all()
        waiting = connection.scalars(select(table.c.id).where(table.c.announced.is_(False))).all()
    assert len(waiting) == 1
    if most == 1000:
        assert kept == [*waiting, *range(newest - 999, newest + 1)]
    else:
        assert len(kept) == 1500

"""Whoever cuts the record's tail or computes it anew differs from what was published of it."""

import json
import sqlite3
from datetime import UTC, datetime

import numpy as np
import pytest

from deploy.record.chain import Act, BrokenChainError, Head, link
from deploy.record.heads import (
    DifferenceChangedError,
    HeadsDifferError,
    PublishedHead,
    accept,
    compare,
    of_now,
)
from deploy.record.record import Record

ROWS = 120


@pytest.fixture
def published(record):
    record.append(*(Act("ada", "label", f"label {number}", {"family": "blend"}) for number in range(ROWS)))
    return [of_now(record, Head(act.sequence, act.hash)) for act in reversed(record.entries(ROWS))]


def verify(record, heads):
    record.prove_whole()
    compare(record, heads)


def difference(record, heads):
    with pytest.raises(HeadsDifferError) as differs:
        compare(record, heads)
    return differs.value.name


def compacted(heads):
    """What compaction leaves of them at least: the newest of every hundred acts."""
    return list({head.size // 100: head for head in heads}.values())


def compute_anew(shell, database, start):
    """Make a chain of what is there, from a row on, as somebody does who knows how."""
    shell.row_factory = sqlite3.Row
    before = database
    for row in shell.execute("SELECT * FROM deploy_record ORDER BY sequence").fetchall():
        if row["sequence"] >= start:
            hash_ = link(before, dict(row))
            shell.execute("UPDATE deploy_record SET hash = ? WHERE sequence = ?", (hash_, row["sequence"]))
            before = hash_
        else:
            before = row["hash"]


def edit(shell, database, row, rng):
    column = rng.choice(["at", "actor", "action", "subject", "details", "hash"])
    value = '{"family": "real"}' if column == "details" else f"{rng.integers(10**9)}"
    shell.execute(f"UPDATE deploy_record SET {column} = ? WHERE sequence = ?", (value, row))
    return row


def delete(shell, database, row, rng):
    shell.execute("DELETE FROM deploy_record WHERE sequence = ?", (row,))
    return row


def insert(shell, database, row, rng):
    for at in range(ROWS, row - 1, -1):
        shell.execute("UPDATE deploy_record SET sequence = ? WHERE sequence = ?", (at + 1, at))
    shell.execute(
        "INSERT INTO deploy_record (sequence, at, actor, action, subject, details, hash)"
        " SELECT ?, at, 'eve', action, subject, details, hash FROM deploy_record WHERE sequence = 1 OR"
        " sequence = 2 LIMIT 1",
        (row,),
    )
    return row


def cut(shell, database, row, rng):
    shell.execute("DELETE FROM deploy_record WHERE sequence >= ?", (row,))
    return row


def recompute(shell, database, row, rng):
    shell.execute("UPDATE deploy_record SET actor = 'eve' WHERE sequence = ?", (row,))
    compute_anew(shell, database, row)
    return row


def forge_acceptance(shell, database, row, rng):
    """Have an old row say that every published head is known to differ, as the server once believed."""
    heads = [hash_ for (hash_,) in shell.execute("SELECT hash FROM deploy_record").fetchall()]
    details = json.dumps({"reason": "known", "heads": heads, "settles": {database: 0}})
    shell.execute(
        "UPDATE deploy_record SET action = 'accept difference', details = ? WHERE sequence = ?",
        (details, row),
    )
    return recompute(shell, database, row, rng)


@pytest.fixture
def untouched(shell, published):
    """The record as it was, to be written over the changed one."""
    copy = sqlite3.connect(":memory:")
    shell.backup(copy)
    yield copy
    copy.close()


@pytest.mark.slow
@pytest.mark.parametrize("tampering", [edit, delete, insert, cut, recompute, forge_acceptance])
@pytest.mark.parametrize("compaction", [False, True])
def test_of_a_hundred_tamperings_of_each_kind_all_are_noticed_where_they_begin(
    record, published, shell, untouched, tampering, compaction
):
    """With what compaction leaves, a chain that was computed anew is noticed, and the place is a range."""
    rng, heads = np.random.default_rng(23), compacted(published) if compaction else published
    for _ in range(100):
        untouched.backup(shell)
        shell.execute("BEGIN")
        row = tampering(shell, record.id, int(rng.integers(1, ROWS + 1)), rng)
        shell.execute("COMMIT")
        place = "a row from" if tampering in (recompute, forge_acceptance) and compaction else f"row {row} "
        with pytest.raises((BrokenChainError, HeadsDifferError), match=place):
            verify(record, heads)
    untouched.backup(shell)
    verify(record, heads)


@pytest.mark.parametrize("tampering", [cut, recompute])
def test_without_published_heads_no_cut_tail_and_no_new_chain_shows(record, published, shell, tampering):
    tampering(shell, record.id, 50, np.random.default_rng(0))
    verify(record, [])


@pytest.mark.parametrize("whole", [True, False])
def test_another_identity_of_the_database_is_a_difference_in_any_chain(record, url, published, shell, whole):
    record.close()
    shell.execute("UPDATE deploy_ledger_identity SET id = ?", ("f" * 32,))
    with pytest.raises(BrokenChainError, match="row 1 "):
        verify(record, published)  # as the server that runs still has it open
    if whole:
        compute_anew(shell, "f" * 32, 1)
    shell.commit()
    changed = Record(url)
    with pytest.raises((BrokenChainError, HeadsDifferError), match="another database" if whole else "row 1 "):
        verify(changed, published)
    if whole:
        settled = accept(changed, published, "ada", difference(changed, published), "begun anew")
        compare(changed, [*published, settled])
        with pytest.raises(HeadsDifferError, match="another database"):
            compare(changed, [*published, settled, published[-1]])
    changed.close()


def test_a_difference_that_is_accepted_is_a_head_itself_and_settles_no_later_one(record, published, shell):
    cut(shell, record.id, 100, np.random.default_rng(0))
    seen = difference(record, published)
    settled = accept(record, published, "ada", seen, "restored the backup of 3 May")
    with pytest.raises(DifferenceChangedError):
        accept(record, [*published, settled], "ada", seen, "once more")
    act = record.entries(1)[0]
    assert (act.sequence, act.actor, act.details["reason"]) == (100, "ada", "restored the backup of 3 May")
    assert (settled.size, settled.hash, settled.settles) == (100, act.hash, {record.id: 99})
    with pytest.raises(HeadsDifferError, match="row 100 of the record was changed"):
        compare(record, published)  # the act alone settles nothing
    compare(record, [*published, settled])
    with pytest.raises(HeadsDifferError, match="row 101 "):
        compare(record, [*published, settled, published[-1]])
    cut(shell, record.id, 100, np.random.default_rng(0))
    with pytest.raises(HeadsDifferError, match="row 100 of the record is gone"):
        compare(record, [*published, settled])


def test_what_was_accepted_hides_no_row_before_it(record, published, shell):
    cut(shell, record.id, 100, np.random.default_rng(0))
    settled = accept(record, published, "ada", difference(record, published), "restored")
    recompute(shell, record.id, 50, np.random.default_rng(0))
    with pytest.raises(HeadsDifferError, match="row 50 "):
        compare(record, [*published, settled])


def test_a_forged_head_of_more_acts_is_one_line_and_is_settled_by_an_admin(record, published):
    forged = PublishedHead(database=record.id, size=10**9, hash="f" * 64, at=datetime(2999, 1, 1, tzinfo=UTC))
    with pytest.raises(HeadsDifferError, match=r"row 121 .* gone.*record accept"):
        compare(record, [*published, forged])
    seen = difference(record, [*published, forged])
    record.append(Act("bo", "log in", "page"))  # what is done meanwhile changes no difference
    settled = accept(record, compacted([*published, forged]), "ada", seen, "forged")
    compare(record, [*published, forged, settled])


@pytest.mark.parametrize("tampering", [cut, recompute, "head", "other head", "restored"])
def test_a_difference_that_changed_once_seen_is_refused(record, published, shell, untouched, tampering):
    """That it is whole again is a change, too."""
    cut(shell, record.id, 100, np.random.default_rng(0))
    seen = difference(record, published)
    if tampering == "restored":
        untouched.backup(shell)
    elif isinstance(tampering, str):
        other = {"database": "f" * 32} if tampering == "other head" else {"size": 10**6}
        published.append(published[-1].model_copy(update=other))
    else:
        tampering(shell, record.id, 60, np.random.default_rng(0))
    acts = record.head().size
    with pytest.raises(DifferenceChangedError, match="verify"):
        accept(record, published, "ada", seen, "restored")
    assert record.head().size == acts

"""`forgewatch record`, against a real server: its list, its proof, and what became of the record's rows."""

import sqlite3
from pathlib import Path
from typing import Any

from deploy.record.acts import Act
from deploy.server.services import Services

Terminal = Any
"""The class of conftest.py, whose fixtures make it."""


def test_acts_are_listed_and_the_whole_is_proven(answered: Terminal, services: Services) -> None:
    for number in range(3):
        services.record.append(Act("ada", "label", f"label {number}"))
    services.record.append(Act("bo", "undo", "label 1"))
    assert "bo" in answered.ok("record", "list")
    assert [
        entry["subject"] for entry in answered.json("record", "list", "--actor", "ada", "--limit", "2")
    ] == [
        "label 2",
        "label 1",
    ]
    said = answered.ok("record", "verify")
    assert "4 acts" in said
    assert services.record.entries(1)[0].hash in said


def test_the_first_act_that_was_changed_is_named(
    answered: Terminal, services: Services, tmp_path: Path
) -> None:
    for number in range(5):
        services.record.append(Act("ada", "label", f"label {number}"))
    (path,) = tmp_path.rglob("ledger.sqlite")
    with sqlite3.connect(path) as database:
        # Who owns the database can drop what forbids it; the chain shows it all the same.
        for (trigger,) in database.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        ).fetchall():
            database.execute(f"DROP TRIGGER {trigger}")
        database.execute("UPDATE deploy_record SET actor = 'eve' WHERE sequence = 3")
    database.close()
    assert "row 3 of the record was changed" in answered.fails("record", "verify")

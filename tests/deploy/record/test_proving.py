"""What the server does with old rows of the ledger, which a reading alone does not prove again."""

import sqlite3
from pathlib import Path

import pytest

from deploy.app import prove_some
from deploy.releases.ledger import DamagedLedgerError, Move
from deploy.server.services import Services


@pytest.mark.parametrize("proves", [True, False])
def test_an_old_row_of_the_ledger_that_was_changed_is_noticed_while_the_server_runs(
    services: Services, tmp_path: Path, proves: bool
) -> None:
    """With the control: without the timer's proof, a reading of the newest rows does not see it."""
    for number in range(400):
        services.ledger.append(lambda _, at=number: [Move("ada", "raise epoch", "", "", epoch=at + 1)])
    services.ledger.events()
    (path,) = tmp_path.rglob("ledger.sqlite")
    with sqlite3.connect(path) as database:
        for (trigger,) in database.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger'"
        ).fetchall():
            database.execute(f"DROP TRIGGER {trigger}")
        database.execute("UPDATE deploy_ledger SET actor = 'eve' WHERE sequence = 5")
    database.close()
    if proves:
        prove_some(services)
        with pytest.raises(DamagedLedgerError, match="row 5"):
            services.ledger.events()
    else:
        assert len(services.ledger.events()) == 400

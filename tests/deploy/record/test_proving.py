"""What the server does with old rows of the ledger, which a reading alone does not prove again."""

from pathlib import Path
from typing import Any

import pytest

from deploy.app import prove_some
from deploy.releases.ledger import DamagedLedgerError, Move
from deploy.server.services import Services


@pytest.mark.parametrize("proves", [True, False])
def test_an_old_row_of_the_ledger_that_was_changed_is_noticed_while_the_server_runs(
    services: Services, tmp_path: Path, without_triggers: Any, proves: bool
) -> None:
    """With the control: without the timer's proof, a reading of the newest rows does not see it."""
    services.ledger.append(lambda _: [Move("ada", "raise epoch", "", "", epoch=at) for at in range(1, 401)])
    services.ledger.events()
    (path,) = tmp_path.rglob("ledger.sqlite")
    with without_triggers(f"sqlite:///{path}") as database:
        database.execute("UPDATE deploy_ledger SET actor = 'eve' WHERE sequence = 5")
    if proves:
        prove_some(services)
        with pytest.raises(DamagedLedgerError, match="row 5"):
            services.ledger.events()
    else:
        assert len(services.ledger.events()) == 400

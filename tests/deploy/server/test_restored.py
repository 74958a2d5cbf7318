"""Databases and artifacts that were restored to different moments: a true state, or a clear refusal."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from deploy.doctor.diagnosis import examine
from deploy.releases.ledger import DamagedLedgerError, Ledger

pytestmark = pytest.mark.slow


@pytest.fixture
def take_live(http, candidate_of, propose):
    def take(artifact):
        propose(artifact)
        body = {"evaluation_digest": candidate_of(artifact).evaluation_digest}
        assert http.post(f"/releases/{artifact.digest}/approve", json=body).json()["state"] == "live"

    return take


def backed_up(url, to):
    """A copy of an SQLite database as `.backup` makes it."""
    with (
        closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as now,
        closing(sqlite3.connect(to)) as backup,
    ):
        now.backup(backup)
    return to


def test_artifacts_older_than_the_ledger_are_named_and_refused_until_they_are_back(
    http, served, settings, make_artifact, take_live, put, monkeypatch
):
    monkeypatch.setenv("FORGEWATCH_DEPLOY_URL", served)
    first = make_artifact()
    second = make_artifact(first, ("upsampling",))
    for artifact in (first, second):
        take_live(artifact)
    assert examine("artifacts").found == "2 artifacts are there"
    shutil.rmtree(Path(settings.artifacts_url) / first.digest)
    found = examine("artifacts")
    assert not found.ok
    assert first.version in found.found
    assert "FORGEWATCH_DEPLOY_ARTIFACTS_URL" in found.advice
    refused = http.post("/rollback", json={"reason": "worse"})
    assert (refused.status_code, refused.json()["detail"]) == (404, f"no artifact {first.digest}")
    assert http.get("/rollout").json()["stable"] == second.digest
    put(first)
    assert examine("artifacts").ok
    assert http.post("/rollback", json={"reason": "worse"}).json()["digest"] == first.digest


def test_a_ledger_older_than_the_artifacts_works(
    http, services, settings, make_artifact, take_live, tmp_path
):
    first = make_artifact()
    take_live(first)
    copy = backed_up(settings.database_url, tmp_path / "backup.sqlite")
    second = make_artifact(first, ("upsampling",))
    take_live(second)
    restored = Ledger(f"sqlite:///{copy}")
    assert restored.id == services.ledger.id
    assert restored.events() == services.ledger.events()[:3]
    restored.close()


def test_a_ledger_whose_rows_were_changed_in_backup_is_refused(settings, make_artifact, take_live, tmp_path):
    take_live(make_artifact())
    copy = backed_up(settings.database_url, tmp_path / "backup.sqlite")
    Ledger(f"sqlite:///{copy}").close()  # the control
    with closing(sqlite3.connect(copy)) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute("DELETE FROM deploy_ledger WHERE sequence = 2")
        connection.commit()
    with pytest.raises(DamagedLedgerError, match=r"row 2 of the ledger is gone; .* restore"):
        Ledger(f"sqlite:///{copy}")

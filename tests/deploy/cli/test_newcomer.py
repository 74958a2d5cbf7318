"""`forgewatch try`: the whole way against a real server; the updater's part is played by the test."""

import re

import pytest
from PIL import Image

from deploy.cli import newcomer
from deploy.cli.main import main
from deploy.client.http import Client
from deploy.releases import approval
from updater.candidate.outlook import LEAST, outlook

"""The class of conftest.py, whose fixtures make it."""
FINDING = "share of blend named"


@pytest.fixture
def folder(tmp_path):
    for family in ("real", "blend"):
        (tmp_path / "mine" / family).mkdir(parents=True)
        for number in range(3):
            Image.new("RGB", (64, 64), (number, 0, len(family))).save(
                tmp_path / "mine" / family / f"{number}.png"
            )
    return tmp_path / "mine"


class Updater:
    """What becomes of an update that is asked for: a proposal of which so many of its family are named."""

    def __init__(self, services, make, candidate_of):
        self.services, self.make, self.candidate_of = services, make, candidate_of
        self.named = 0.9
        self.refuses = None
        self.updates = 0

    def follow(self, api, run):
        self.updates += 1
        table = self.services.runs
        lease = table.claim("test")
        assert lease is not None
        table.record_newest_label(lease, max((entry.label for entry in api.labels()), default=0))
        if self.refuses:
            return table.finish(lease, "refused", error=self.refuses)
        artifact = self.make(named=self.named)
        for file in (*artifact.manifest.files, "manifest.json"):
            with self.services.artifacts.upload(artifact.digest, file) as upload:
                upload.write((artifact.folder / file).read_bytes())
                upload.commit()
        candidate, evidence = self.candidate_of(artifact), self.services.artifacts.evidence(artifact.digest)
        self.services.ledger.append(
            lambda history: approval.propose(history, candidate, evidence, self.services.updater, "updater")
        )
        state = "proposed with findings" if candidate.findings else "proposed"
        return table.finish(lease, state, candidate=candidate.digest)


@pytest.fixture
def updater(services, make_artifact, candidate_of, monkeypatch):
    playing = Updater(services, make_artifact, candidate_of)
    monkeypatch.setattr(newcomer, "follow_update", playing.follow)
    monkeypatch.setattr(newcomer, "import_", lambda *_, **__: None)
    monkeypatch.setattr(Client, "outlook", lambda _: outlook({}, {"blend": LEAST}))
    monkeypatch.setattr(Client, "test_media", lambda _, digests: digests[:4])
    monkeypatch.setattr(newcomer, "_calls", lambda _, __, chosen, ___: dict.fromkeys(chosen, "real"))
    return playing


@pytest.fixture
def says(monkeypatch):
    """Someone at a terminal, who confirms everything; what was asked."""
    asked = []

    def answer(question, **_):
        asked.append(question)
        return "our reals changed"

    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.confirm", answer)
    monkeypatch.setattr("typer.prompt", answer)
    return asked


def test_without_a_stack_one_line_says_how_to_start_one(terminal, folder):
    assert "start the stack with `forgewatch up`" in terminal.fails("try", str(folder))


def test_pictures_in_no_class_s_folder_are_not_labelled_and_it_says_so(answered, updater, tmp_path, capsys):
    (tmp_path / "flat").mkdir()
    Image.new("RGB", (64, 64)).save(tmp_path / "flat" / "a.png")
    assert main(["try", str(tmp_path / "flat")]) == 1
    error = capsys.readouterr().err
    assert "put reals into" in error
    assert updater.updates == 0


def test_nothing_is_trained_without_a_labelled_family_and_a_release(answered, updater, folder, monkeypatch):
    monkeypatch.setattr(Client, "outlook", lambda _: outlook({}, {"blend": LEAST | {"train": 7}}))
    refused = answered.fails("try", str(folder))
    assert "there is nothing to train yet" in refused
    assert "families that are alike into one" in refused
    assert updater.updates == 0


def test_the_whole_way_says_each_step_its_time_and_what_changed_and_ends_live(answered, updater, folder):
    told = answered.ok("try", str(folder), "--yes", "--as", "ada")
    places = [told.index(f"{number} of 5.") for number in range(1, 6)]
    assert places == sorted(places)
    assert "holds 3 real, 3 blend" in told or "holds 3 blend, 3 real" in told
    assert "The thresholds rest on 0 groups" in told
    assert "your pictures" in told
    assert re.search(r"[1-3] of your [1-3] held-back forgeries would be called real", told)
    assert "is live" in told
    (release,) = answered.json("releases")
    assert (release["state"], release["actor"]) == ("live", "ada")
    again = answered.ok("try", str(folder), "--yes")
    assert "has seen all labels" in again
    assert updater.updates == 1


def test_with_findings_nothing_goes_live_by_itself_and_it_says_who_decides(answered, updater, folder, capsys):
    updater.named = 0.1
    assert main(["try", str(folder), "--yes"]) == 1
    told = capsys.readouterr()
    assert f"finding: {FINDING}" in told.out
    assert "which a person takes or mends: forgewatch approve" in told.err
    assert answered.json("status")["live"] is None


def test_at_a_terminal_each_finding_is_taken_with_a_reason(answered, updater, folder, says):
    updater.named = 0.1
    assert "is live" in answered.ok("try", str(folder))
    assert says[0] == "Train on this now?"
    assert "with 1 finding and your reasons" in says[1]
    assert says[2:] == [f"why do you accept '{FINDING}'?"]
    (release,) = answered.json("releases")
    history = answered.json("release", release["digest"])["history"]
    assert history[1]["accepted"] == {FINDING: "our reals changed"}


def test_what_the_update_could_not_learn_is_the_last_line_with_what_to_do(answered, updater, folder):
    updater.refuses = "too few labelled reals: 3 train"
    assert "update 1 refused: too few labelled reals: 3 train. Mend that" in answered.fails(
        "try", str(folder), "--yes"
    )


def test_what_a_person_rejected_is_not_trained_of_its_labels(answered, updater, folder, says, monkeypatch):
    monkeypatch.setattr("typer.confirm", lambda question, **_: "Train" in question)
    assert "It waits: forgewatch approve" in answered.ok("try", str(folder))
    (release,) = answered.json("releases")
    answered.ok("reject", release["digest"], "--reason", "too early", "--as", "ada")
    assert "ada rejected release" in answered.fails("try", str(folder))
    assert updater.updates == 1

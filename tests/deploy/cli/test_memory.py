"""The commands about what the memory and the record hold, and Label Studio's, against a real server."""

import json
import re
import sqlite3
import time
from contextlib import closing
from unittest.mock import patch

import numpy as np
import pytest
from PIL import Image
from verdicts import make_item, make_verdict

from deploy.cli.main import main
from deploy.record.chain import Act, Head, link
from deploy.record.heads import of_now
from deploy.releases.ledger import Move
from ingest.records import InRecord
from memory.clusters.clustering import renew
from memory.estimate.sums import note_estimates
from memory.records import LabelledCount
from memory.settings import MemorySettings
from memory.store import Store


def as_the_memory_does():
    """Compute the clusters, by the settings of the environment."""
    settings = MemorySettings()
    with closing(Store(settings.database_url)) as store:
        renew(store, settings)


def test_before_an_update_is_trained_it_is_said_what_it_will_rest_on(answered):
    reals = [LabelledCount("real", "import:trip", split, 30, 9) for split in ("train", "calibration")]
    counted = [*reals, LabelledCount("gan", "import:trip", "train", 5, 5)]
    with patch("deploy.server.releases.labelled_counts", return_value=counted):
        told = answered.ok("update")
        assert answered.json("update")["state"] == "queued"
    assert re.search(r"import:trip\s+9\s+9\s+0", told)
    assert "The thresholds rest on 9 groups of reals" in told
    assert "import:trip (about 55 more reals)" in told
    assert "gan will not be learnt yet: it lacks 3 for train, 2 for calibration, 2 for test" in told
    assert "Nothing can be learnt yet: reals lack 2 for test" in told
    assert told.index("rest on") < told.index("update 1 is queued")


@pytest.mark.slow
def test_labelled_folders_are_imported_and_listed_and_undone(answered, tmp_path, capsys):
    rng = np.random.default_rng(0)
    for family in ("real", "blend"):
        folder = tmp_path / "media" / family
        folder.mkdir(parents=True)
        for number in range(2):
            pixels = rng.integers(0, 256, (160, 160, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.png")
    (folder / "0_real").mkdir()
    for name in ("0_real/a.png", "0_real/b.png", "notes.txt"):
        (folder / name).write_text("no picture")
    done = answered.json("import", "media", "--source", "/cameras/7", "--as", "ada")
    assert done["new"] == {"real": 2, "blend": 2}
    left_out = ["blend/0_real/a.png", "blend/0_real/b.png", "blend/notes.txt"]
    assert [skipped["path"] for skipped in done["skipped"]] == left_out
    called = {(entry["what"], entry["actor"]) for entry in answered.json("labels")}
    assert called == {("real", "ada"), ("blend", "ada")}
    assert main(["import", "media"]) == 0
    told = "left out: blend/0_real/a.png and 1 more: its folder 0_real contradicts blend"
    assert told in capsys.readouterr().err
    assert "/cameras/7" in answered.ok("update"), "the source that the stream has"
    with patch("deploy.client.importing._send", side_effect=KeyboardInterrupt):
        Image.fromarray(pixels[::-1]).save(folder / "3.png")
        assert main(["import", "media"]) == 130
        assert "run the same command again to go on" in capsys.readouterr().out
    undone = answered.json("undo", str(done["labels"]["blend"]), "--as", "bob")
    assert undone["exemplars"] == 2
    shelves = {(s["shelf"], s["family"]): s["count"] for s in answered.json("status")["shelves"]}
    assert shelves[("unknown", None)] == 2
    assert answered.json("clusters") == []
    assert "never computed" in answered.ok("clusters")
    assert "2 unknowns came since" in answered.ok("clusters")
    as_the_memory_does()
    (cluster,) = answered.json("clusters")
    assert (cluster["size"], cluster["unclustered"]) == (2, True)
    listed = answered.ok("clusters")
    assert "unclustered" in listed
    assert "computed at" in listed
    assert "came since" not in listed
    assert "say which state you saw" in answered.fails("label", cluster["id"], "ignore", code=2)
    assert f"{cluster['id']}@{cluster['version']}" in listed
    assert answered.json("label", f"{cluster['id']}@{cluster['version']}", "ignore")["exemplars"] == 2
    assert answered.json("status")["unknowns_waiting"] == 0


@pytest.mark.slow
def test_a_clusters_sheet_is_written_as_png(answered, tmp_path):
    folder = tmp_path / "media" / "blend"
    folder.mkdir(parents=True)
    pixels = np.random.default_rng(0).integers(0, 256, (160, 160, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(folder / "0.png")
    done = answered.json("import", "media")
    answered.ok("undo", str(done["labels"]["blend"]))
    as_the_memory_does()
    (cluster,) = answered.json("clusters")
    answered.ok("sheet", cluster["id"], "-o", "sheet.png")
    with Image.open("sheet.png") as sheet:
        assert sheet.format == "PNG"


# `forgewatch memory`, against a real server whose memory has nothing of a source yet.
def test_a_source_is_blocked_before_it_comes_listed_and_let_in_again(answered, services):
    assert "nothing of it is held" in answered.ok("memory", "purge", "--source", "calm")
    assert "--yes is needed" in answered.fails("memory", "purge", "--source", "cam", "--block", code=2)
    said = answered.ok("memory", "purge", "--source", "cam", "--block", "--yes", "--as", "ada")
    assert "0 items of 'cam' were purged, and it is blocked" in said
    assert answered.json("memory", "blocked")[0]["actor"] == "ada"
    answered.ok("memory", "unblock", "--source", "cam")
    assert answered.json("memory", "blocked") == []
    assert "is not blocked" in answered.fails("memory", "unblock", "--source", "cam")


def test_drawn_items_are_listed_labelled_and_called_otherwise_and_told_in_one_line(answered, services):
    verdict = make_verdict(make_item(3), label="real", fake_probability=0.1)
    record = InRecord("verdicts", 0, 3, time.time_ns() // 10**6, None, b"", ())
    with services.memory.write_unversioned() as connection:
        note_estimates(connection, [(record, verdict)], 10_000)
    assert [item["id"] for item in answered.json("audit")] == ["media-0-3"]
    assert "said real (90% sure)" in answered.ok("audit", "media-0-3", "blended")
    assert answered.json("audit") == []
    assert "already" in answered.fails("audit", "media-0-3", "blended")
    assert "you say real instead of blended" in answered.ok("audit", "media-0-3", "real")
    assert "name its class" in answered.fails("audit", "media-0-3", code=2)


def test_accuracy_needs_a_live_release(answered):
    assert "no release is live" in answered.fails("accuracy")


def test_accuracy_without_an_audit_is_not_known_and_the_power_stands_beside(answered, services, proposed):
    artifact = proposed()
    verdict = make_verdict(make_item(3), label="real", fake_probability=0.1, release=artifact.digest)
    record = InRecord("verdicts", 0, 3, time.time_ns() // 10**6, None, b"", ())
    with services.memory.write_unversioned() as connection:
        note_estimates(connection, [(record, verdict)], 0)
    told = answered.ok("accuracy", "--release", artifact.digest[:12])
    assert "not known: label 20 drawn items" in told
    assert "90.0%" not in told
    assert "predicted real" in told
    assert "never seen" in told or "unseen families" in told
    found = answered.json("accuracy", "--release", artifact.digest[:12])
    assert found["accuracy"]["classes"]["real"]["items"] == 1


# `forgewatch label-studio`, against a real server: tasks out, annotations back, and files that are none.
def test_without_anything_that_waits_there_is_a_configuration_and_no_task(answered, services, tmp_path):
    said = answered.ok("label-studio", "export", str(tmp_path / "ls"))
    assert "0 tasks of 0 items" in said
    assert "<Choices" in (tmp_path / "ls" / "config.xml").read_text()
    assert json.loads((tmp_path / "ls" / "tasks.json").read_text()) == []
    assert services.record.entries(1)[0].action == "export"
    assert "no cluster cx" in answered.fails("label-studio", "export", str(tmp_path), "--cluster", "cx")


def test_what_comes_back_of_nothing_known_is_left_out_with_its_reason(answered, services, tmp_path):
    (file := tmp_path / "export.json").write_text("<View/>")
    assert "no JSON export of Label Studio" in answered.fails("label-studio", "import", str(file))
    result = [{"from_name": "class", "value": {"choices": ["gan"]}}]
    data = {"exemplar": "media-0-1", "project": services.ledger.id}
    other = data | {"project": "other"}
    annotations = [{"completed_by": 1, "result": result}]
    file.write_text(
        json.dumps([{"id": n, "data": d, "annotations": annotations} for n, d in ((1, data), (2, other))])
    )
    done = answered.json("label-studio", "import", str(file))
    assert (done["labelled"], done["left_out"]) == (
        0,
        ["task 2: it is of another project", "media-0-1: there is no such exemplar"],
    )


# `forgewatch record`, against a real server: its list, its proof, and what became of the record's rows.
def test_acts_are_listed_and_the_chain_is_proven_though_no_broker_has_its_heads(answered, services):
    for number in range(3):
        services.record.append(Act("ada", "label", f"label {number}"))
    services.record.append(Act("bo", "undo", "label 1"))
    assert "bo" in answered.ok("record", "list")
    assert [
        entry["subject"] for entry in answered.json("record", "list", "--actor", "ada", "--limit", "2")
    ] == ["label 2", "label 1"]
    complaint = answered.fails("record", "verify")
    assert "4 acts follow from each other" in complaint
    assert "no broker answers" in complaint


def test_the_first_act_that_was_changed_is_named(answered, services, tmp_path, without_triggers):
    for number in range(5):
        services.record.append(Act("ada", "label", f"label {number}"))
    (path,) = tmp_path.rglob("ledger.sqlite")
    # Who owns the database can drop what forbids it; the chain shows it all the same.
    with without_triggers(f"sqlite:///{path}") as database:
        database.execute("UPDATE deploy_record SET actor = 'eve' WHERE sequence = 3")
    assert "row 3 of the record was changed" in answered.fails("record", "verify")


def test_a_difference_is_accepted_by_the_name_that_the_proof_gave_it(answered, services, monkeypatch):
    services.record.append(Act("ada", "label", "label 1"))
    forged = of_now(services.record, Head(9, "f" * 64))
    monkeypatch.setattr(services.heads, "read", lambda: [forged])  # no broker runs here
    assert "`forgewatch record accept 1-" in answered.fails("record", "verify")
    assert "is not the difference now" in answered.fails("record", "accept", "1-" + "0" * 16, "forged")
    assert len(answered.json("record", "list")) == 1


def test_a_ledger_computed_anew_differs_from_its_moves_acts(answered, services, tmp_path, without_triggers):
    """The chain of the ledger alone, which is not published, would show nothing."""
    services.ledger.append(lambda _: [Move("ada", "raise epoch", "", "", epoch=at) for at in range(1, 9)])
    assert "8 acts follow from each other" in answered.fails("record", "verify")
    (path,) = tmp_path.rglob("ledger.sqlite")
    with without_triggers(f"sqlite:///{path}") as database:
        database.row_factory = sqlite3.Row
        database.execute("UPDATE deploy_ledger SET actor = 'eve' WHERE sequence = 3")
        before = services.ledger.id
        for row in database.execute("SELECT * FROM deploy_ledger ORDER BY sequence").fetchall():
            before = link(before, dict(row))
            database.execute(
                "UPDATE deploy_ledger SET hash = ? WHERE sequence = ?", (before, row["sequence"])
            )
    assert "row 3 of the ledger is not the one that is on record" in answered.fails("record", "verify")

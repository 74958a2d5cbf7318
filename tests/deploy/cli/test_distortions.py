"""`forgewatch distort` as a person types it, rightly and wrongly."""

import json
import re
import sqlite3
import time
from contextlib import closing
from pathlib import Path
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
from updater.distortions.deeperforensics import DEEPERFORENSICS
from updater.distortions.files import read_meta
from updater.distortions.methods import FORGERYNET


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Six pictures in two folders, a hidden one, and a note."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name in ("a/1.png", "a/2.png", "a/3.png", "b/1.png", "b/2.png", "b/3 x.png", ".hidden/0.png"):
        path = tmp_path / "in" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (32, 40, 3), dtype=np.uint8)).save(path)
    return tmp_path / "in"


def pixels(path):
    return np.asarray(Image.open(path))


def test_a_folder_is_distorted_and_its_meta_file_does_it_again(folder, capsys):
    assert main(["distort", "in", "out", "--mix", "3", "--meta", "meta/1.txt", "--seed", "5"]) == 0
    assert "6 distorted, 0 left out" in capsys.readouterr().out
    metas = read_meta(Path("meta/1.txt"))
    assert list(metas) == ["a/1.png", "a/2.png", "a/3.png", "b/1.png", "b/2.png", "b/3 x.png"]
    assert all(len({step.name for step in steps}) == 3 for steps in metas.values())
    assert {step.name for steps in metas.values() for step in steps} <= DEEPERFORENSICS.keys()
    assert len(set(metas.values())) > 3
    assert main(["distort", "in", "again", "--from-meta", "meta/1.txt", "--meta", "2.txt"]) == 0
    assert Path("2.txt").read_bytes() == Path("meta/1.txt").read_bytes()
    assert not Path("out/.hidden").exists()
    assert {path.name for path in Path("out").rglob("*.png")} == {"1.png", "2.png", "3.png", "3 x.png"}


def test_a_seed_gives_the_same_files_whichever_others_there_are(folder):
    for target, seed in (("one", "1"), ("two", "1"), ("three", "2")):
        assert main(["distort", "in", target, "--type", "GNC", "--seed", seed]) == 0
        (folder / "a" / "2.png").unlink(missing_ok=True)
    one, two, three = (pixels(f"{name}/b/1.png") for name in ("one", "two", "three"))
    assert (one == two).all()
    assert (one != three).any()


def test_one_file_gets_the_type_and_level_that_are_named(folder):
    assert main(["distort", "in/a/1.png", "one.png", "--type", "CC", "--level", "5", "--meta", "m"]) == 0
    assert Path("m").read_text() == "1.png CC:5\n"
    assert (
        pixels("one.png") == (pixels("in/a/1.png").astype(np.float32) * np.float32(0.35)).astype(int)
    ).all()


def test_a_set_of_ours_is_drawn_by_the_law_of_files(folder):
    assert main(["distort", "in", "out", "--type", "enhanced", "--meta", "m", "--seed", "1"]) == 0
    metas = read_meta(Path("m"))
    assert {step.name for steps in metas.values() for step in steps} <= FORGERYNET.keys()
    assert {len(steps) for steps in metas.values()} <= {0, 1, 2, 3, 4}
    assert (
        main(["distort", "in", "other", "--type", "normal", "--mix", "2", "--level", "4", "--meta", "m"]) == 0
    )
    assert {(len(steps), steps[0].level, steps[1].level) for steps in read_meta(Path("m")).values()} == {
        (2, 4, 4)
    }


def test_what_cannot_be_distorted_is_left_out_and_counted(folder, capsys):
    (folder / "note.txt").write_text("no picture")
    (folder / "v.mp4").write_bytes(b"\0\0\0\x18ftypisom")
    Path("meta").write_text("a/1.png CC:1\nb/1.png CC:2\nnote.txt CC:1\nv.mp4 CS:1\ngone.png CC:1\n")
    assert main(["distort", "in", "out", "--from-meta", "meta", "--meta", "done"]) == 1
    told = capsys.readouterr()
    assert "2 distorted, 7 left out" in told.out
    assert "left out in/note.txt: " in told.err
    assert "left out in/v.mp4 cannot be read" in told.err
    assert "left out a/2.png: no line of the meta file names it" in told.err
    assert "in lacks 1 that meta names, such as gone.png" in told.err
    assert told.err.splitlines()[-1] == "forgewatch: 7 files were not distorted"
    assert Path("done").read_text() == "a/1.png CC:1\nb/1.png CC:2\n"


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["absent", "out"], 1, "there is no absent: name a picture, a video, or a folder of them"),
        (["in/a/1.png", "bad.txt"], 1, "bad.txt is there already and is not written over"),
        (["in/a/1.png", "bad.txt/o.png"], 1, "bad.txt is a file, so bad.txt/o.png cannot lie in it"),
        (["in", "bad.txt/out"], 1, "bad.txt is a file, so bad.txt/out cannot lie in it"),
        (["empty", "in"], 1, "in holds files already, which are not written over"),
        (["in", "out", "--meta", "bad.txt/m"], 1, "bad.txt/m lies in a file: name one in a folder"),
        (["in", "out", "--type", ""], 2, "is no distortion: choose of CS"),
        (["in", "out", "--level", ""], 2, "--level '' is no level: they are 1 to 5"),
        (["in", "in/out"], 1, "in/out lies in in, which is to be distorted"),
        (["in", "."], 1, "in lies in ., where it could be overwritten"),
        (["in", "in/a/1.png"], 1, "in/a/1.png is a file: name a folder"),
        (["in/a/1.png", "in"], 1, "in is a folder: name a file"),
        (["in/a/1.png", "in/a/1.png"], 1, "is itself the input: name another file"),
        (["in/a/1.png", "o.nosuch"], 1, "o.nosuch: no format of pictures"),
        (
            ["in", "out", "--type", "XX"],
            2,
            "XX is no distortion: choose of CS, CC, BW, GNC, GB, JPEG, VC; jpeg",
        ),
        (["in", "out", "--type", "CS", "--level", "6"], 2, "6 is no level of CS: they are 1 to 5"),
        (["in", "out", "--level", "0"], 2, "0 is no level"),
        (["in", "out", "--level", "high"], 2, "--level 'high' is no level"),
        (["in", "out", "--mix", "5"], 2, "Invalid value for '--mix'"),
        (["in", "out", "--mix", "2", "--type", "CS"], 2, "--mix draws its types, so --type CS"),
        (["in", "out", "--type", "enhanced", "--level", "2"], 2, "--type enhanced draws its levels"),
        (["in", "out", "--from-meta", "absent.txt"], 1, "--from-meta absent.txt is no file: name one"),
        (["in", "out", "--from-meta", "empty"], 1, "--from-meta empty is no file: name one"),
        (["in", "out", "--from-meta", "bad.txt"], 1, "bad.txt, line 1: QQ is no distortion"),
        (["in", "out", "--from-meta", "bad.txt", "--mix", "2"], 2, "--from-meta names the distortions"),
        (["in/a/1.png", "o.png", "--via-xvid"], 1, "in/a/1.png is no video, so it cannot go through XVID"),
        (["empty", "out"], 1, "empty holds no files"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(folder, capsys, words, code, told):
    def fails(*words, code=1):
        assert main(["distort", *words]) == code
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("forgewatch: ")
        return line

    Path("bad.txt").write_text("a/1.png QQ:1\n")
    Path("empty").mkdir()
    before = pixels("in/a/1.png")
    assert told in fails(*words, code=code)
    assert (pixels("in/a/1.png") == before).all()
    assert not Path("out").exists()


# The commands about what the memory and the record hold, and Label Studio's, against a real server.
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

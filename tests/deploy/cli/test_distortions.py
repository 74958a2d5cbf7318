"""`forgewatch distort` as a person types it, rightly and wrongly."""

import sqlite3
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from deploy.cli.main import main
from deploy.record.chain import link
from deploy.releases.ledger import Move
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

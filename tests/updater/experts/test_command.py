"""`forgewatch expert` on a real memory: what is added is priced first; what is refused leaves nothing."""

import json

import pytest
import typer
from makers import WORTH

from deploy.cli.main import main

NAME = "test_efficientnet"
pytestmark = pytest.mark.slow


@pytest.fixture
def stack(tmp_path, memory_settings, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "MEMORY_DATABASE_URL": memory_settings.database_url,
        "MEMORY_CROPS_URL": memory_settings.crops_url,
        "UPDATER_WORK_DIR": str(tmp_path / "work"),
    }.items():
        monkeypatch.setenv(f"FORGEWATCH_{name}", value)


@pytest.fixture
def add(stack, checkpoint):
    def add(name="small", *more, path=None, logits=1):
        path = path or checkpoint(logits)[0]
        given = ["--checkpoint", str(path), "--architecture", NAME, "--licence", "MIT", "--yes", *more]
        return main(["expert", "add", name, *given])

    return add


def listed(capsys):
    assert main(["expert", "list", "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


def test_an_expert_is_added_with_its_worth_listed_and_removed(add, remember, capsys):
    remember("real", 30)
    remember("blocky", 30)
    assert add() == 0
    assert "s of one core an image beside the detector's" in capsys.readouterr().out
    (row,) = listed(capsys)
    assert row["contract"]["licence"] == "MIT"
    assert row["worth"]["everywhere"]["reals"] > 0
    assert row["worth"]["seconds"] > 0
    assert add() == 1
    assert "there is an expert small" in capsys.readouterr().err
    assert main(["expert", "remove", "small"]) == 0
    assert listed(capsys) == []


def test_it_asks_first_and_no_is_an_answer(stack, checkpoint, remember, capsys, monkeypatch):
    remember("real", 30)
    remember("blocky", 30)

    def no(text, **how):
        raise typer.Abort

    monkeypatch.setattr(typer, "confirm", no)
    path, _ = checkpoint()
    given = ["--checkpoint", str(path), "--architecture", NAME, "--licence", "MIT"]
    assert main(["expert", "add", "small", *given]) == 130
    assert listed(capsys) == []


@pytest.mark.parametrize(
    ("name", "more", "logits", "code", "said"),
    [
        ("small", (), 1000, 1, "a head of 1000 classes"),
        ("Small", (), 1, 1, "is no name of an expert"),
        ("small", ("--input", "resize"), 1, 1, "the memory keeps none: set FORGEWATCH_MEMORY_PICTURE_PX"),
        ("small", ("--input", "whole"), 1, 2, "choose of crop, resize"),
        ("small", ("--mean", "123,117,104"), 1, 2, "three numbers of 0..1 are wanted"),
        ("small", ("--architecture", "test_resnet"), 1, 1, "does not fit the network"),
    ],
)
def test_what_does_not_fit_is_one_line_and_leaves_nothing(
    add, remember, capsys, name, more, logits, code, said
):
    remember("real", 30)
    remember("blocky", 30)
    assert add(name, *more, logits=logits) == code
    told = capsys.readouterr().err
    assert said in told
    assert len(told.splitlines()) == 1
    assert listed(capsys) == []


def test_an_empty_memory_is_told_of(add, capsys):
    assert add() == 1
    assert "holds back no labelled item" in capsys.readouterr().err


def test_an_expert_is_trained_from_the_command_line_and_can_be_added_as_it_is(
    stack, folders, remember, tmp_path, capsys, monkeypatch
):
    remember("real", 30)
    remember("blocky", 30)
    out = tmp_path / "trained.safetensors"
    trained = ["expert", "train", str(folders("a", "b")), "--out", str(out), "--architecture", NAME]
    assert main([*trained, "--steps", "2", "--px", "64", "--device", "cpu"]) == 0
    assert "held back, never trained on" in capsys.readouterr().out
    monkeypatch.setattr("updater.experts.worth.worth_of", lambda *of: WORTH)
    assert main(["expert", "add", "own", "--checkpoint", str(out), "--licence", "MIT", "--yes"]) == 0

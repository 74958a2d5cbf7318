"""`forgewatch pretrain` as a person types it, rightly and wrongly."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors import safe_open

from deploy.cli.main import main
from updater.pretraining import pretrain as module

pytestmark = pytest.mark.slow  # it trains networks


@pytest.fixture(autouse=True)
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a folder of its own, without autoencoders."""
    monkeypatch.setattr(module, "_AUTOENCODERS", 0)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def stream(tmp_path: Path) -> Path:
    folder = tmp_path / "stream"
    folder.mkdir()
    for number in range(4):
        levels = np.random.default_rng(number).integers(90, 160, (128, 128, 3)).astype(np.uint8)
        Image.fromarray(levels).save(folder / f"{number}.jpg")
    return folder


def test_a_folder_becomes_a_checkpoint(stream: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (stream / "note.txt").write_text("no picture")
    assert main(["pretrain", str(stream), "--out", "new/weights.safetensors", "--minutes", "0.01"]) == 0
    told = capsys.readouterr()
    assert "4 files of 1 sources, 1 unreadable, 0 not needed" in told.out
    assert "FORGEWATCH_UPDATER_CHECKPOINT=new/weights.safetensors" in told.out
    assert "left out note.txt: " in told.err
    with safe_open("new/weights.safetensors", "pt") as file:
        assert "feature_whitening" in file.keys()  # noqa: SIM118  # no dictionary
    assert [path.name for path in Path("new").iterdir()] == ["weights.safetensors"]


@pytest.mark.parametrize(
    ("given", "code", "told"),
    [
        (["absent"], 1, "absent is no folder"),
        (["."], 1, "holds no files"),
        (["stream", "--backbone", "lcnet_05"], 2, "--backbone lcnet_05 is no model that timm knows"),
        (["stream", "--minutes", "0"], 2, "Invalid value for '--minutes'"),
        (["stream", "--device", "cuda:9"], 2, "--device cuda:9"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(
    given: list[str], code: int, told: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    if given[0] == "stream":
        request.getfixturevalue("stream")
    assert main(["pretrain", *given, "--out", "weights.safetensors"]) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert told in line
    assert not Path("weights.safetensors").exists()


def test_a_disk_that_is_full_is_told_in_one_line_and_leaves_nothing_torn(stream: Path) -> None:
    command = [
        sys.executable,
        "-c",
        "import sys; from deploy.cli.main import main; from updater.pretraining import pretrain as p;"
        "p._AUTOENCODERS = 0; sys.exit(main())",
        "pretrain", str(stream), "--out", "weights.safetensors", "--minutes", "0.01",
    ]  # fmt: skip

    def narrow() -> None:
        # What a write beyond a quota, or on a full disk, comes back as: an error of the system.
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))

    done = subprocess.run(
        command,
        preexec_fn=narrow,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    (line,) = done.stderr.splitlines()
    assert "File too large" in line
    assert not Path("weights.safetensors").exists()

"""`forgewatch benchmark forgerynet` says in one line what is wrong, before anything is made or read."""

from pathlib import Path

import pytest

from deploy.cli.main import main


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--task", "bogus", "--synthetic"],
            "--task bogus is none: choose of image, spatial, video, temporal",
        ),
        (["--task", "image"], "name the folder of ForgeryNet with --data, or say --synthetic"),
        (
            ["--task", "image", "--synthetic", "--classes", "16"],
            "--classes 16 is none here: choose of 2, 3, 9",
        ),
        (["--task", "video", "--synthetic", "--model", "x3d"], "x3d looks at no videos: choose of x3d_m,"),
        (["--task", "image", "--synthetic", "--model", "resnet19"], "resnet19 is no model that timm knows"),
        (["--task", "image", "--data", "nowhere"], "--data nowhere is no folder"),
        (["--task", "image", "--data", "here", "--synthetic"], "or say --synthetic, and not both"),
        (["--task", "image", "--synthetic", "--model", ""], "is no model that timm knows"),
        (
            ["--task", "image", "--synthetic", "--input", ""],
            "--input '' is none here: choose of face, native",
        ),
        (["--task", "image", "--synthetic", "--train-on", ""], "--train-on '' is none here: choose of"),
        (["--task", "image", "--synthetic", "--rate", "inf"], "Invalid value for '--rate'"),
        (["--task", "spatial", "--synthetic", "--model", "unet:"], "--model unet: draws no maps: choose of"),
        (
            ["--task", "spatial", "--synthetic", "--model", "unet:nosuch"],
            "nosuch is no model that timm knows",
        ),
        (["--task", "spatial", "--synthetic", "--model", "hrnet"], "--model hrnet makes no maps: choose of"),
        (
            ["--task", "spatial", "--synthetic", "--model", "localizer:psuedo"],
            "localizer:psuedo is none: choose of localizer, :pseudo and :left-out",
        ),
        (
            ["--task", "temporal", "--synthetic", "--model", "bnm"],
            "--model bnm finds no stretches: choose of convolutions",
        ),
        # What a task has where nothing is said is never refused.
        *(
            (["--task", task, "--synthetic", "--out", "file"], "file/report.json lies in a file")
            for task in ("image", "spatial", "video", "temporal")
        ),
        (
            ["--task", "temporal", "--synthetic", "--input", "face"],
            "--input changes nothing of --task temporal with --model convolutions: leave it out",
        ),
    ],
)
def test_what_is_wrong_is_one_line(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("no folder")
    assert main(["benchmark", "forgerynet", *words]) != 0
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not list(tmp_path.glob(".forgewatch/benchmarks/forgerynet-*")), "nothing was made"

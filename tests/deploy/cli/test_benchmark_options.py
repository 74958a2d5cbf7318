"""A benchmark's options say what to train; a wrong one is refused in one line."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from deploy.cli.main import main
from updater.benchmark.continual.setup import Setup
from updater.training.step import Recipe

LUCIR = ("--preset", "cddb-lucir")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--epochs", "0"), "--epochs 0: it has to be above 0"),
        (("--epochs", "nan"), "--epochs nan: it has to be above 0"),
        (("--epochs", "many"), "'--epochs'"),
        (("--rate", "-1e-3"), "--rate -1e-3: it has to be a number above 0, or two as FIRST,LATER"),
        (("--rate", "1e-3,1e-4,1e-5"), "or two as FIRST,LATER"),
        (("--rate", "fast"), "--rate fast: it has to be a number above 0"),
        (("--crop-px", "8"), "'--crop-px'"),
        (("--crop-px", "100"), "--crop-px 100: a crop's side must be a multiple of 8"),
        (
            ("--no-forensic",),
            "--no-forensic: a network needs a backbone or forensic features: name a --backbone",
        ),
        (("--learner", "dytox"), "--learner dytox reads the feature map of a backbone: name a --backbone"),
        (("--learner", "bic", "--head", "cosine"), "--learner bic has a linear head: leave --head out"),
        (("--distilled", "none"), "--distilled 'none' is not known: choose of all, exemplars"),
        ((*LUCIR, "--backbone", "none"), "cddb-lucir trains a backbone, and --backbone none is none"),
        ((*LUCIR, "--leave-out"), "holds no item back to set thresholds by: no --leave-out"),
        (("--preset", "cddb-lwf"), "--preset 'cddb-lwf' is not known: choose of cddb-lucir"),
    ],
)
def test_training_that_cannot_be_is_one_line_before_any_data_is_read(fails, words, told):
    assert told in fails("cddb", "--data", "absent", *words, code=2)


def test_the_own_stream_has_its_calibration_items_apart(fails):
    assert "a --preset is of cddb or opencil" in fails("synthetic", *LUCIR, "--backbone", "lcnet_035")


def test_a_gpu_with_too_little_memory_is_told_of_in_one_line(fails, monkeypatch, tmp_path):
    def read(self: object, reader: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate much.")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("updater.benchmark.continual.streams.Dataset.read", read)
    assert "choose a smaller --backbone" in fails("synthetic", "--device", "cpu")


def lay(folder: Path) -> Path:
    for place in (f"{t}/{p}/{k}" for t in ("a", "b") for p in ("train", "val") for k in ("0_real", "1_fake")):
        (folder / place).mkdir(parents=True)
        for number in range(3):
            rng = np.random.default_rng([*place.encode(), number])
            pixels = rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)
            Image.fromarray(pixels // 64 * 64 if "fake" in place else pixels).save(
                folder / place / f"{number}.png"
            )
    return folder


@pytest.mark.slow
def test_what_is_given_beside_a_preset_counts_and_without_calibration_no_threshold_is_told(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(Setup, "recipe", lambda self, items, first: Recipe(1, 1e-3, 0, 2e-3, 0.3, 4))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    words = ["cddb", "--data", lay(tmp_path / "data"), "--sequence", "a,b", *LUCIR]
    small = ["--backbone", "lcnet_035", "--crop-px", "64", "--scheme", "mc", "--memory", "4"]
    assert main(["benchmark", *map(str, words), *small, "--device", "cpu", "--report", "r.json"]) == 0
    assert "Remaining differences: native crops" in capsys.readouterr().out
    told = json.loads((tmp_path / "r.json").read_text())
    options = told["options"]
    assert (options["learner"], options["batch"], options["augment"]) == ("lucir", 32, "flip")
    assert (options["options"]["scheme"], options["memory"], options["crops"]["crop_px"]) == ("mc", 4, 64)
    assert (options["architecture"]["width"], options["rates"]) == (2048, [1e-4, 1e-4])
    assert (told["reals_unknown"], told["reals_fake"]) == (None, None)
    assert told["map"] is not None
    assert told["map_mass"] is not None


def test_no_more_options_are_listed_than_a_reader_takes_in(capsys):
    assert main(["benchmark", "cddb", "--help"]) == 0
    listed = re.findall(r"^│ *\*? *(?:-\w,? *)?(--[a-z-]+)", capsys.readouterr().out, re.MULTILINE)
    assert {"--data", "--learner", "--seeds", "--help"} <= set(listed)
    assert len(listed) <= 28


def test_wrong_names_are_refused_before_torch_is_loaded_and_the_group_alone_lists_its_benchmarks():
    code = "import sys; from deploy.cli.main import main; code = main(sys.argv[1:]);"
    code += "sys.exit(0 if 'torch' in sys.modules else code)"
    for words in (
        ("cddb", "--learner", "x"),
        ("opencil", *LUCIR, "--rejection", "msp,x"),
        ("cddb", "--scheme", "x"),
        (),
    ):
        ended = subprocess.run(
            [sys.executable, "-c", code, "benchmark", *words], capture_output=True, text=True
        )
        assert ended.returncode == 2
        assert "choose of" in ended.stderr if words else "deeperforensics" in ended.stdout

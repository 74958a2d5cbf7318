"""How a benchmark is told what to train and which model looks at whole pictures: rightly, and wrongly."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from deploy.cli.main import main
from updater.benchmark.continual.setup import Setup
from updater.training.step import Recipe

TINY = ("--picture-backbone", "test_vit")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--picture-checkpoint", "FILE"), "--picture-checkpoint is of a --picture-backbone: name one"),
        (
            ("--picture-backbone", "test_vitt", "--picture-checkpoint", "FILE"),
            "--picture-backbone test_vitt is no model that timm knows: test_vit",
        ),
        (
            (*TINY, "--picture-checkpoint", "FILE", "--preset", "cddb-lucir", "--backbone", "lcnet_035"),
            "--preset cddb-lucir holds no item back to set --picture-backbone's share by",
        ),
    ],
)
def test_what_names_no_model_is_one_line(
    fails: Callable[..., str], published: Callable[[str], Path], words: tuple[str, ...], told: str
) -> None:
    given = [str(published("test_vit")) if word == "FILE" else word for word in words]
    assert told in fails("cddb", "--data", "absent", *given, code=2)


def test_weights_of_another_model_and_files_that_hold_none_are_one_line(
    fails: Callable[..., str], published: Callable[[str], Path], tmp_path: Path
) -> None:
    of_another = published("test_efficientnet")
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(of_another.read_bytes()[:1000])
    lacking = tmp_path / "lacking.safetensors"
    state = load_file(published("test_vit"))
    save_file({k: v for k, v in state.items() if k != "blocks.1.mlp.fc1.bias"}, lacking)
    for file, told in (
        (of_another, "does not fit the network: it lacks"),
        (cut, "is no safetensors file"),
        (lacking, "it lacks blocks.1.mlp.fc1.bias"),
        (tmp_path / "none", "cannot be read (No such file or directory"),
    ):
        assert told in fails("cddb", "--data", "absent", *TINY, "--picture-checkpoint", file)


@pytest.mark.slow
def test_a_checkpoint_votes_in_a_benchmark_and_no_picture_is_looked_at_twice(
    tmp_path: Path,
    published: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for place in (f"{t}/{p}/{k}" for t in ("a", "b") for p in ("train", "val") for k in ("0_real", "1_fake")):
        (tmp_path / "data" / place).mkdir(parents=True)
        for number in range(8):
            colour = np.array([60, 180, 60] if "fake" in place else [180, 60, 60])
            pixels = (colour + rng.normal(0, 25, (64, 64, 3))).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "data" / place / f"{number}.png")
    words = ["cddb", "--data", "data", "--sequence", "a,b", "--crop-px", "64", "--epochs", "0.1"]
    words += [*TINY, "--picture-checkpoint", str(published("test_vit"))]
    words += ["--device", "cpu", "--no-leave-out", "--report", "r.json"]
    assert main(["benchmark", *words]) == 0, capsys.readouterr().err
    told = json.loads((tmp_path / "r.json").read_text())
    assert told["real_fake_auc"] == 1
    assert told["options"]["architecture"]["picture"]["side_px"] == 224
    kept = sorted((tmp_path / ".forgewatch/benchmarks/frozen").rglob("*.safetensors"))
    assert kept
    assert main(["benchmark", *words, "--seed", "1"]) == 0
    assert sorted((tmp_path / ".forgewatch/benchmarks/frozen").rglob("*.safetensors")) == kept


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
        (("--distilled", "none"), "--distilled 'none' is not known: choose of all, exemplars"),
        (
            (*LUCIR, "--backbone", "none"),
            "cddb-lucir trains a backbone, and --backbone none is none",
        ),
        ((*LUCIR, "--leave-out"), "holds no item back to set thresholds by: no --leave-out"),
        (("--preset", "cddb-lwf"), "--preset 'cddb-lwf' is not known: choose of cddb-lucir"),
    ],
)
def test_training_that_cannot_be_is_one_line_before_any_data_is_read(
    fails: Callable[..., str], words: tuple[str, ...], told: str
) -> None:
    assert told in fails("cddb", "--data", "absent", *words, code=2)


def test_the_own_stream_has_its_calibration_items_apart(fails: Callable[..., str]) -> None:
    assert "a --preset is of cddb or opencil" in fails("synthetic", *LUCIR, "--backbone", "lcnet_035")


def test_a_gpu_with_too_little_memory_is_told_of_in_one_line(
    fails: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
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
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Setup, "recipe", lambda self, items, first: Recipe(1, 1e-3, 0, 2e-3, 0.3, 4))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)
    words = ["cddb", "--data", lay(tmp_path / "data"), "--sequence", "a,b", *LUCIR]
    small = ["--backbone", "lcnet_035", "--crop-px", "64", "--scheme", "mc", "--memory", "4"]
    assert main(["benchmark", *map(str, words), *small, "--device", "cpu", "--report", "r.json"]) == 0
    assert "What still differs: native crops" in capsys.readouterr().out
    told = json.loads((tmp_path / "r.json").read_text())
    options = told["options"]
    assert (options["learner"], options["batch"], options["augment"]) == ("lucir", 32, "flip")
    assert (options["options"]["scheme"], options["memory"], options["crops"]["crop_px"]) == ("mc", 4, 64)
    assert (options["architecture"]["width"], options["rates"]) == (2048, [1e-4, 1e-4])
    assert (told["reals_unknown"], told["reals_fake"]) == (None, None)
    assert told["map"] is not None
    assert told["map_mass"] is not None


def test_no_more_options_are_listed_than_a_reader_takes_in(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["benchmark", "cddb", "--help"]) == 0
    listed = re.findall(r"^│ *\*? *(?:-\w,? *)?(--[a-z-]+)", capsys.readouterr().out, re.MULTILINE)
    assert {"--data", "--learner", "--seeds", "--help"} <= set(listed)
    assert len(listed) <= 28

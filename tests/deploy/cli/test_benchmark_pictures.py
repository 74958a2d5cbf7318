"""How a benchmark is told of a model that looks at whole pictures: rightly, and wrongly."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file, save_file

from deploy.cli.main import main

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

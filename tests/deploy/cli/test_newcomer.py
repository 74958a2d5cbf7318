"""`forgewatch benchmark newcomer` as a person types it, on noisy pictures and four steps of training."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from deploy.cli.main import main
from updater.benchmark.synthetic.families import FAMILIES
from updater.training.step import Recipe


def lay(folder: Path, places: list[str]) -> Path:
    """Makes one picture for each place."""
    for number, place in enumerate(places):
        (folder / place).mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (136, 128, 3), np.uint8)
        Image.fromarray(pixels).save(folder / place / f"{number}.png")
    return folder


@pytest.mark.slow
def test_the_newcomers_way_is_gone_from_a_folder_of_sources(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from updater.benchmark.synthetic import tasks
    from updater.candidate import builder

    monkeypatch.chdir(tmp_path)
    for words, said in (([], "no --data"), (["--data", str(lay(tmp_path / "none", ["a/0_real"]))], "1_fake")):
        assert main(["benchmark", "newcomer", *words]) == 1
        assert said in capsys.readouterr().err
    monkeypatch.setattr(tasks, "FAMILIES", {name: FAMILIES[name] for name in ("upsampled", "blended")})
    for recipe in ("FIRST", "UPDATE"):
        monkeypatch.setattr(builder, recipe, Recipe(1, 1e-3, 4, 2e-3, 0.1))
    places = ["gan/0_real"] * 10 + ["gan/1_fake"] * 4 + ["phone/0_real"] * 6
    data = lay(tmp_path / "data", places)
    words = ["newcomer", "--data", str(data), "--reals", "40", "--each", "20", "--report", "r.json"]
    assert main(["benchmark", *words]) == 0
    assert "forgeries not real" in capsys.readouterr().out
    figures = json.loads((tmp_path / "r.json").read_text())
    assert figures["whole"]["others_not_real"]["after"]["items"] == 8
    assert figures["whole"]["forgeries_not_real"]["after"]["items"] == 4
    assert set(figures["by_source"]) == {"gan", "phone"}

"""A network of the paper's learns maps from pictures and their truth, and is asked for maps."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from updater.benchmark.forgerynet.choices import ChoiceError, Choices, Job
from updater.benchmark.forgerynet.families import OWN
from updater.benchmark.forgerynet.map_networks import trained
from updater.benchmark.forgerynet.sights import Shown, Sight
from updater.benchmark.forgerynet.spatial import measure
from updater.benchmark.networks.classifier import NetworkError
from updater.data.layouts.entries import Entry, Split

PX = 72
CHOICES = Choices(
    "spatial",
    "unet:resnet18",
    synthetic=True,
    input="native",
    augmentation="weak",
    px=64,
    batch=4,
    steps=30,
    rate=0.02,
)


def entry(folder: Path, number: int, split: Split) -> Entry:
    """Grey noise; of every second picture a square is white, and its map says so."""
    rng = np.random.default_rng([number, len(split)])
    picture = rng.normal(100, 10, (PX, PX, 3)).clip(0, 255).astype(np.uint8)
    truth = np.zeros((PX, PX), np.uint8)
    top, left = rng.integers(0, PX - 24, 2)
    forged = number % 2 == 1
    if forged:
        picture[top : top + 24, left : left + 24] = 255
        truth[top : top + 24, left : left + 24] = 255
    path, mask = folder / f"{split}{number}.png", folder / f"{split}{number}-map.png"
    Image.fromarray(picture).save(path)
    Image.fromarray(truth).save(mask)
    family = "blended" if forged else "real"
    return Entry(path, int(forged), family, path.name, split, masks=(mask,) if forged else ())


def job_of(tmp_path: Path, choices: Choices = CHOICES) -> Job:
    train = tuple(entry(tmp_path, number, "train") for number in range(8))
    test = tuple(entry(tmp_path, number, "test") for number in range(4))
    return Job(train, (), test, OWN, choices, 0, torch.device("cpu"), tmp_path, tmp_path / "sights")


@pytest.mark.slow
@pytest.mark.parametrize("input", ["native", "face"])
def test_a_network_finds_what_is_forged(tmp_path: Path, input: str) -> None:  # the option's name
    found = measure(job_of(tmp_path, replace(CHOICES, input=input)))  # type: ignore[arg-type]
    assert (found.figures["pixel_auc"].value or 0) > 0.9
    assert found.figures["pixel_auc"].n == 2
    assert found.zeros["pixel_auc"].value == 0.5
    assert float(str(found.about["parameters"])) == 14_329_235


@pytest.mark.parametrize("augmentation", ["weak", "enhanced"])
def test_the_map_moves_with_its_picture(tmp_path: Path, augmentation: str) -> None:
    job = job_of(tmp_path, replace(CHOICES, augmentation=augmentation))  # type: ignore[arg-type]
    load = trained(
        job, [Shown(Sight(one), one.masks[0] if one.masks else None) for one in job.train]
    ).source.load
    apart = []
    for number in range(8):
        shown, target = load(1, np.random.default_rng(number))
        inside = target[1:].reshape(64, 64) > 0.5
        assert target[0] == 1
        assert shown.shape == (64, 64, 3)
        apart.append(shown[inside].mean() - shown[~inside].mean())
    # Some of our perturbations darken what is white; moved apart, the two would differ by nothing.
    assert np.median(apart) > (130 if augmentation == "weak" else 50)


def test_a_model_that_is_none_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ChoiceError, match="makes no maps: choose of localizer, unet"):
        measure(job_of(tmp_path, replace(CHOICES, model="resnet18")))
    with pytest.raises(NetworkError, match="unet:BACKBONE"):
        measure(job_of(tmp_path, replace(CHOICES, model="unet")))

"""A folder of one's own by source: every depth, its groups, and what is wrong with it in one line."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from updater.benchmark.data.crops import CropReader
from updater.benchmark.data.folders import load_sources
from updater.data.layouts.entries import LayoutError
from updater.data.training_data import LabelledCrops


def lay(folder: Path, *places: str) -> Path:
    for number, place in enumerate(places):
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (128, 128, 3), np.uint8)
        Image.fromarray(pixels).save(folder / place)
    return folder


def test_cddbs_layout_and_folders_by_photograph_are_read_alike(tmp_path: Path) -> None:
    folder = lay(
        tmp_path,
        "gan/train/0_real/a.png",
        "gan/val/1_fake/b.png",
        "phone/real/bridge/c.png",
        "phone/real/bridge/d.png",
        "phone/notes/e.png",
    )
    with CropReader(processes=1) as reader:
        items = LabelledCrops.join(load_sources(folder, reader))
    assert items.families == ("gan/real", "gan/fake", "phone/real", "phone/real")
    assert items.sources == ("gan", "gan", "phone", "phone")
    assert items.groups[2:] == ("phone/bridge", "phone/bridge")
    assert len(set(items.groups)) == 3


@pytest.mark.parametrize("places", [(), ("phone/real/a.png",), ("gan/1_fake/a.png",), ("gan/other/a.png",)])
def test_without_reals_or_forgeries_it_says_what_it_needs(tmp_path: Path, places: tuple[str, ...]) -> None:
    with CropReader(processes=1) as reader, pytest.raises(LayoutError, match="SOURCE/0_real") as refused:
        load_sources(lay(tmp_path, *places), reader)
    assert str(tmp_path) in str(refused.value)

"""A small tree of pictures in ForgeryNet's layout: forgeries are noisier than reals."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from updater.benchmark.data.forgerynet_classes import classes_of

PX = 40


def write_pictures(root: Path, *, each: int = 4, directories: tuple[int, ...] = (1, 7, 16, 17)) -> Path:
    """Write so many pictures of each directory for training and for validation, and their lists."""
    rng = np.random.default_rng(0)
    for part, folder in (("Training", "train_release"), ("Validation", "val_perturb_release")):
        lines = []
        for directory in directories:
            for number in range(each):
                path = f"{folder}/{directory}/{part[0]}{directory}-{number}/frame{number:05d}.png"
                spread = 2 if directory >= 16 else 40 + 4 * directory
                noise = rng.normal(128, spread, (PX, PX, 3)).clip(0, 255).astype(np.uint8)
                place = root / part / "image" / path
                place.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(noise).save(place)
                lines.append(f"{path} {' '.join(map(str, classes_of(directory)))}")
        (root / part / "image_list.txt").write_text("\n".join(lines) + "\n")
    return root


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """A tree with two families, one of each kind, and two sources of reals."""
    return write_pictures(tmp_path / "data")

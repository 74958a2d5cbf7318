"""A small tree of pictures in ForgeryNet's layout: forgeries are noisier than reals."""

import numpy as np
import pytest
import torch
from PIL import Image

from updater.benchmark.forgerynet.run import benchmark
from updater.benchmark.forgerynet.tree import read_other, read_tree
from updater.benchmark.report.harness import run_seeds
from updater.data.layouts.forgerynet import classes_of
from updater.progress import no_progress

PX = 40


def write_pictures(root, *, each=4, directories=(1, 7, 16, 17)):
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
def pictures(tmp_path):
    """A tree with two families, one of each kind, and two sources of reals."""
    return write_pictures(tmp_path / "data")


@pytest.fixture(scope="session")
def run_task():
    """Runs a task on a tree, as the command does, but for where its runs and what it looked at lie."""

    def go(choices, tree, folder, *, seeds=range(1), progress=no_progress):
        data = read_tree(choices, tree, read_other(choices))
        task = benchmark(choices, data, cache=tree / "cache", device=torch.device("cpu"), weights=None)
        return list(run_seeds(task, seeds, folder, command=("forgewatch",), device="cpu", progress=progress))

    return go

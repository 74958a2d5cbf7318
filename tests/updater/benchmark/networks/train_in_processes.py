"""Trains a few steps in the processes that torchrun starts; the first writes the network to a file."""

import sys
from functools import partial
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from updater.benchmark.forgerynet import training
from updater.benchmark.networks.videos import make_video_network
from updater.training.processes import is_first, join_processes

RECIPE = training.NetworkRecipe(32, 5, 3, 0.01, 0.01, 0.0, (0.5,), 1e-4, frames=4)


def load(row: int, rng: np.random.Generator) -> training.Example:
    return rng.integers(0, 256, (4, 32, 32, 3), dtype=np.uint8), np.array(row)


if __name__ == "__main__":
    with join_processes(torch.device("cpu")) as device:
        make = partial(make_video_network, "frames:test_resnet", 2, 32, 4)
        job = training.TrainingJob(make, load, np.full(2, 0.5), "noise", RECIPE, training.cross_entropy)
        network = training.train(job, seed=0, device=device, checkpoint=None)
        if is_first():
            save_file(network.state_dict(), Path(sys.argv[1]))

"""Run under torchrun by test_training.py: FOLDER DEVICE. Trains on FOLDER's items, a GPU a process."""

import os
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from detector.release.manifest import Architecture
from updater.data.training_data import LabelledCrops
from updater.training import processes, two_stages
from updater.training.step import Recipe, Step


def main(folder: Path, kind: str) -> None:
    crops = np.load(folder / "crops.npy")
    names = tuple(str(number) for number in range(len(crops)))
    families = ("real",) * (len(crops) // 2) + ("blocky",) * (len(crops) - len(crops) // 2)
    items = LabelledCrops(names, families, names, names, crops, np.arange(len(crops) + 1))
    architecture = Architecture(backbone="lcnet_050", crop_px=crops.shape[1])
    with processes.join_processes(torch.device(kind)) as device:
        recipe = Recipe(10, 1e-3, 10, 2e-3, 0.3, batch=16)
        step = Step(items, ("real", "blocky"), architecture, recipe=recipe, device=device)
        state = two_stages.learn(step).network.state_dict()
        rank = os.environ["RANK"]
        save_file({k: v.cpu().contiguous() for k, v in state.items()}, folder / f"{rank}.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])

"""Run under torchrun by test_batches.py: FOLDER. Trains two steps and writes what this process has."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from detector.model.network import Network
from detector.release.manifest import Architecture
from updater.benchmark.learners.bias_correction import interpolate
from updater.data import stored_rows
from updater.data.stored_rows import store_rows
from updater.data.training_data import LabelledCrops
from updater.training import loop, processes
from updater.training.crop_rows import backbone_rows, shared_rows
from updater.training.loop import Training, item_weights
from updater.training.losses import classification
from updater.training.processes import add_gradients, by_share
from updater.training.step import FIRST, Options, Step, TrainedModel

CLASSES = ("real", "blocky", "striped")
RECIPE = replace(FIRST, batch=9, pseudo_share=0.4)
RATE = 0.01
FIRST_STEP = [0, 1, 2, 3, 6, 7, 8, 9]


def descend(network: torch.nn.Module, optimiser: torch.optim.Optimizer) -> None:
    """Go down the gradient. AdamW's first updates are signs, and turn rounding into whole steps."""
    with torch.no_grad():
        for group in optimiser.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(group["lr"] * parameter.grad)


def two_steps(
    items: LabelledCrops, checkpoint: Path | None = None, rate: float = RATE
) -> dict[str, torch.Tensor]:
    """Train on eight items of two classes and then on all; returns the network's tensors."""
    # Smooth throughout: at an activation's kink rounding decides which gradient there is.
    architecture = Architecture(backbone="test_efficientnet", crop_px=64, width=8)
    # A loss over pairs of items, and one over some of them: no mean over shares gives these.
    options = Options(exposure="outliers", scheme="mt")
    first = Step(items.take(FIRST_STEP), CLASSES[:2], architecture, options=options, recipe=RECIPE)
    network = one_step(replace(first, checkpoint=checkpoint), rate)
    second = replace(first, train=items, classes=CLASSES, previous=TrainedModel(network, CLASSES[:2]), seed=1)
    return one_step(replace(second, checkpoint=checkpoint), rate).state_dict()


def one_step(step: Step, rate: float) -> Network:
    torch.manual_seed(step.seed)
    network = loop.start(step)
    data = loop.training_set(step, network)
    if step.previous is None:
        loop.whiten(network, step, data)
    saved = loop.checkpoint(step, "test", ("crops", "rows"))
    run, loss = Training(step, data, saved), interpolate(classification(step, data), step, data)
    weights = item_weights(data.targets, 0.5)
    run.run("crops", network, loss, weights, steps=4, rate=rate, update=descend)
    rows = backbone_rows(network, data.crops, step.device)
    run.run("rows", network, loss, weights, steps=4, rate=rate, rows=rows, update=descend)
    saved.remove()
    return network.eval()


def normalised(seed: int = 0) -> dict[str, torch.Tensor]:
    """Pass 5 random images through a normalisation; returns its rows, gradients and statistics."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(5, 3, 4, 4, generator=generator) * 3 + 1
    network = torch.nn.Sequential(torch.nn.Conv2d(3, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.ReLU())
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    rows = by_share(lambda own: network(own).mean((2, 3)), images)
    # The pairs' distances: no share of them is a mean over items.
    torch.autograd.backward(torch.pdist(rows).square().sum())
    add_gradients(network.parameters())
    found = {f"gradient.{name}": one.grad for name, one in network.named_parameters()}
    return {"rows": rows.detach(), **found, **network.state_dict()}


def rows_of_crops(items: LabelledCrops) -> dict[str, torch.Tensor]:
    """Compute a row a crop, in memory and on disk, and the features of a backbone."""
    passed = []

    def row(images: torch.Tensor) -> torch.Tensor:
        passed.append(len(images))
        return torch.nn.functional.conv2d(images, torch.ones(5, 3, 3, 3) / 7).mean((2, 3))

    held = shared_rows(row, items.crops, torch.device("cpu"))
    most, stored_rows.MAX_HELD_BYTES = stored_rows.MAX_HELD_BYTES, 64
    on_disk = shared_rows(row, store_rows(items.crops), torch.device("cpu"))
    stored_rows.MAX_HELD_BYTES = most
    torch.manual_seed(0)
    network = Network(Architecture(backbone="test_efficientnet", crop_px=64, width=8), 2)
    return {
        "held": torch.from_numpy(held),
        "on_disk": torch.from_numpy(on_disk[:]),
        "backbone": torch.from_numpy(backbone_rows(network, items.crops, torch.device("cpu"))),
        "passed": torch.tensor(sum(passed)),
    }


def load(folder: Path) -> LabelledCrops:
    """Read the items that the test wrote."""
    arrays = np.load(folder / "items.npz")
    families = tuple(str(one) for one in arrays["families"])
    ids = tuple(str(number) for number in range(len(families)))
    return LabelledCrops(ids, families, ids, ids, arrays["crops"], arrays["starts"])


def main(folder: Path) -> None:
    """Write this process's tensors to FOLDER/RANK.safetensors."""
    torch.set_num_threads(1)
    with processes.join_processes(torch.device("cpu")):
        rank = torch.distributed.get_rank()
        trained = two_steps(load(folder), folder / "checkpoint.safetensors")
        save_file(
            {f"trained.{k}": v.contiguous() for k, v in trained.items()}
            | {f"normalised.{k}": v.contiguous() for k, v in normalised().items()}
            | {f"rows.{k}": v.contiguous() for k, v in rows_of_crops(load(folder)).items()},
            folder / f"{rank}.safetensors",
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))

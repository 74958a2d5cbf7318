"""The spatial task by networks of the paper's: trained on pictures and their maps, asked for a map each.

He et al. 2021, "ForgeryNet: A Versatile Benchmark for Comprehensive Forgery Analysis", sections 4.1.2 and
H.1: the loss is cross-entropy over real and forged, plus binary cross-entropy of the map with soft targets
(the paper chooses by validation between that and a squared difference). What moves the picture moves its map.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from ingest.sandbox.crops import cut, grid
from updater.benchmark.forgerynet.choices import Choices, Job
from updater.benchmark.forgerynet.sights import Map, MapItem, MapResult, resize
from updater.benchmark.forgerynet.training import (
    Example,
    NetworkRecipe,
    TrainingJob,
    as_input,
    recipe_of,
    train,
)
from updater.benchmark.forgerynet.views import perturbation, scaled_and_cut
from updater.benchmark.networks.maps import make_map_network, map_of
from updater.distortions.methods import distort_with_maps
from updater.filters import Picture
from updater.training.fit import half_precision
from updater.training.loop import item_weights

PX, SMALL_PX, SMALL_BATCH = 256, 128, 16
THRESHOLD = 0.5
_COVERING = 9


def measure(job: Job, train_on: Sequence[MapItem], test: Sequence[MapItem]) -> MapResult:
    """Return the maps of the test pictures, by the network that the choices name."""
    plan = train_map_network(job, train_on)
    network = train(
        plan,
        seed=job.seed,
        device=job.device,
        checkpoint=job.folder / "maps.safetensors",
        progress=lambda *at: job.progress("train the network", *at),
    )
    pairs = []
    for number, item in enumerate(test, 1):
        pairs.append(_map(network, item, job, plan.recipe.px))
        job.progress("test", number, len(test))
    predicted, true = zip(*pairs, strict=True)
    parameters = sum(parameter.numel() for parameter in network.parameters())
    return MapResult(tuple(range(len(test))), predicted, true, THRESHOLD, {"parameters": parameters})


def maker(
    choices: Choices, device: torch.device, weights: Path | None
) -> tuple[NetworkRecipe, Callable[[], nn.Module]]:
    """Return the recipe of the choices' network, and what makes it. weights: a file to begin with."""
    recipe = recipe_of("image", choices, device, PX)
    if device.type != "cuda":
        recipe = replace(recipe, px=choices.px or SMALL_PX, batch=choices.batch or SMALL_BATCH)
    return recipe, lambda: make_map_network(choices.model, recipe.px, weights, pretrained=choices.pretrained)


def train_map_network(job: Job, train_on: Sequence[MapItem]) -> TrainingJob:
    """Return the training on pictures with their maps, reals and forgeries drawn equally often."""
    choices = job.choices
    recipe, make = maker(choices, job.device, job.weights)
    labels = np.array([item.sight.entry.label for item in train_on], np.int64)

    def load(row: int, rng: np.random.Generator) -> Example:
        picture, truth = _training_crop(train_on[row], choices, recipe.px, rng)
        return picture, np.append(np.float32(labels[row]), truth.ravel())

    facts = [(str(item.sight.entry.path), str(item.truth), item.sight.box) for item in train_on]
    identity = sha256(repr((facts, choices.as_record())).encode()).hexdigest()
    return TrainingJob(make, load, item_weights(labels, 1.0), identity, recipe, loss)


def loss(output: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of a MapNetwork's output. targets: float32 [B, 1 + S · S], the label and the map."""
    of_picture = F.cross_entropy(output[:, :2], targets[:, 0].long())
    return of_picture + F.binary_cross_entropy_with_logits(output[:, 2:], targets[:, 1:])


def _training_crop(item: MapItem, choices: Choices, px: int, rng: np.random.Generator) -> tuple[Picture, Map]:
    """Return uint8 RGB [px, px, 3] and its map, float32 [px, px] in 0..1."""
    pixels = item.sight.pixels()
    mask = np.rint(255 * item.mask(*pixels.shape[:2])).astype(np.uint8)
    frames, maps = distort_with_maps(rng, pixels[None], mask[None], perturbation(rng, choices.augmentation))
    both = np.concatenate([frames, maps[..., None].repeat(3, 3)])
    crop, truth = scaled_and_cut(both, choices.input, px, rng)
    return crop, np.asarray(truth[..., 0] / np.float32(255), np.float32)


def _map(network: nn.Module, item: MapItem, job: Job, px: int) -> tuple[Map, Map]:
    """Return a picture's predicted and true map.

    Of the input face at the network's size; of native at the picture's own, where crops overlap their mean.
    """
    pixels = item.sight.pixels()
    if job.choices.input == "face":
        truth = np.rint(255 * item.mask(*pixels.shape[:2])).astype(np.uint8)
        (answer,) = _predict_map(network, resize(pixels, px, px)[None], job)
        return answer, np.asarray(resize(truth, px, px) / np.float32(255), np.float32)
    height, width = pixels.shape[:2]
    corners = grid(width, height, px, _COVERING)
    total, times = np.zeros((2, max(height, px), max(width, px)), np.float32)
    for (x, y), cells in zip(corners, _predict_map(network, cut(pixels, corners, px), job), strict=True):
        total[y : y + px, x : x + px] += cells
        times[y : y + px, x : x + px] += 1
    return (total / np.maximum(times, 1))[:height, :width], item.mask(height, width)


def _predict_map(network: nn.Module, crops: Picture, job: Job) -> NDArray[np.float32]:
    with torch.inference_mode(), half_precision(job.device):
        output = network(as_input(torch.tensor(crops), job.device))
    return np.asarray(map_of(output.float()).cpu().numpy(), np.float32)

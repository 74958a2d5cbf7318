"""How a network is trained: the paper's constants where there is a GPU, and a small form of them elsewhere.

He et al. 2021, "ForgeryNet: A Versatile Benchmark for Comprehensive Forgery Analysis", appendix: SGD with
Nesterov's momentum of 0.9; the rate rises over the first steps and is halved several times. Where fewer
steps are taken, rise and falls come at the same shares of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from updater.benchmark.forgerynet.choices import Choices
from updater.data.layouts.forgerynet import Medium

MOMENTUM = 0.9


@dataclass(frozen=True)
class Recipe:
    """What a training follows from, its network and media aside."""

    px: int
    """side of what the network sees"""
    batch: int
    steps: int
    rate: float
    """after the rise, and before the first fall"""
    first_rate: float
    rise: float
    """share of the steps in which the rate goes from the first one to the highest"""
    falls: tuple[float, ...]
    """shares of the steps after which the rate is halved"""
    weight_decay: float
    frames: int = 1
    """of a clip"""
    stride: int = 1
    """frames of the video from one frame of a clip to the next"""

    def rate_at(self, step: int) -> float:
        """Return the rate of a step, counted from 0."""
        done = step / self.steps
        if done < self.rise:
            return self.first_rate + (self.rate - self.first_rate) * done / self.rise
        return float(self.rate * 0.5 ** sum(done >= fall for fall in self.falls))


_IMAGE = Recipe(224, 128, 100_000, 0.05, 0.01, 0.01, (0.2, 0.4, 0.6, 0.7, 0.8, 0.9), 1e-4)
_VIDEO = Recipe(224, 64, 50_000, 0.02, 1e-3, 0.01, (0.4, 0.6, 0.8, 0.9), 1e-4, frames=16, stride=4)
PAPER: Mapping[Medium, Recipe] = {"image": _IMAGE, "video": _VIDEO}
SMALL: Mapping[Medium, Recipe] = {
    "image": replace(_IMAGE, px=128, batch=32, steps=600),
    "video": replace(_VIDEO, px=96, batch=8, steps=300, frames=8),
}
"""for some minutes of two cores"""


def recipe_of(medium: Medium, choices: Choices, device: torch.device, px: int | None = None) -> Recipe:
    """Return the recipe of a task on a device, as the choices change it. px: the paper's side."""
    recipe = PAPER[medium] if device.type == "cuda" else SMALL[medium]
    if px is not None and device.type == "cuda":
        recipe = replace(recipe, px=px)
    chosen = {name: getattr(choices, name) for name in ("px", "batch", "steps", "rate")}
    recipe = replace(recipe, **{name: value for name, value in chosen.items() if value is not None})
    return replace(recipe, first_rate=min(recipe.first_rate, recipe.rate))

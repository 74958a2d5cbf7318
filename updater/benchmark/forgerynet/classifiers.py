"""How a network that tells pictures or videos apart is made, shown files, and trained.

He et al. 2021, "ForgeryNet: A Versatile Benchmark for Comprehensive Forgery Analysis", sections 4.1.1 and
4.1.3. Of a video with crops single the middle clip is asked; with multi the mean over clips that cover it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from updater.benchmark.forgerynet.choices import Choices
from updater.benchmark.forgerynet.sights import Sample
from updater.benchmark.forgerynet.training import (
    Example,
    Examples,
    NetworkRecipe,
    TrainingJob,
    as_input,
    cross_entropy,
    loaded_ahead,
    recipe_of,
    train,
)
from updater.benchmark.forgerynet.views import test_clips, test_crops, training_clip, training_crop
from updater.benchmark.networks.images import front_of, make_image_network, published_px
from updater.benchmark.networks.videos import make_video_network, sampling_of
from updater.data.layouts.entries import LayoutError
from updater.training.fit import half_precision
from updater.training.loop import item_weights
from updater.training.processes import by_share


@dataclass(frozen=True)
class Classifier:
    """A network that is yet to be trained, and its views of a file: uint8 RGB [..., S, S, 3]."""

    choices: Choices
    make: Callable[[], nn.Module]
    recipe: NetworkRecipe
    training_view: Callable[[Sample, np.random.Generator], NDArray[np.uint8]]
    """one view, by chance"""
    test_views: Callable[[Sample], NDArray[np.uint8]]
    """[n, ..., S, S, 3]: the answer is the mean of what is said of each"""

    def train(
        self,
        sights: Sequence[Sample],
        targets: NDArray[np.int64],
        *,
        seed: int,
        device: torch.device,
        checkpoint: Path,
        progress: Callable[[int, int], None],
    ) -> nn.Module:
        """Return the network, trained on classes drawn equally often: the accuracy asked for is their mean.

        targets: the class of each file, 0 for real, int64 [n]. Raises LayoutError without reals or forgeries.
        """
        if len(np.unique(targets > 0)) < 2:
            raise LayoutError(
                "training needs reals and forgeries, and one of them is missing: look at the lists"
            )

        def load(row: int, rng: np.random.Generator) -> Example:
            return self.training_view(sights[row], rng), np.array(targets[row])

        chances = item_weights(np.unique(targets, return_inverse=True)[1], 1.0)
        facts = [
            (str(sight.entry.path), sight.box, int(target))
            for sight, target in zip(sights, targets, strict=True)
        ]
        identity = sha256(repr((facts, self.choices.as_record())).encode()).hexdigest()
        job = TrainingJob(self.make, Examples(load, chances, identity), self.recipe, cross_entropy)
        return train(job, seed=seed, device=device, checkpoint=checkpoint, progress=progress)

    def probabilities(
        self,
        network: nn.Module,
        sights: Sequence[Sample],
        device: torch.device,
        progress: Callable[[int, int], None],
    ) -> NDArray[np.float64]:
        """Return a network's probabilities of each file, float64 [n, K]; several processes share them."""

        def of_share(places: Tensor) -> Tensor:
            own = [sights[int(place)] for place in places]
            answers = []
            with torch.inference_mode():
                for number, views in enumerate(loaded_ahead(self.test_views, own), 1):
                    parts = torch.split(torch.from_numpy(views), max(1, self.recipe.batch))
                    with half_precision(device):
                        logits = [network(as_input(part, device)).float() for part in parts]
                    answers.append(torch.cat(logits).softmax(1).mean(0))
                    progress(number, len(own))
            return torch.stack(answers)

        with torch.no_grad():
            p = by_share(of_share, torch.arange(len(sights)))
        return p.double().cpu().numpy()


def of_pictures(choices: Choices, classes: int, device: torch.device, weights: Path | None) -> Classifier:
    """Return a network on pictures. weights: a file to begin with."""
    recipe = recipe_of("image", choices, device, published_px(choices.model))
    front = front_of(choices.model)
    return Classifier(
        choices,
        lambda: make_image_network(choices.model, classes, recipe.px, weights, pretrained=choices.pretrained),
        recipe,
        lambda sight, rng: front(training_crop(sight, choices, recipe.px, rng)),
        lambda sight: np.stack([front(crop) for crop in test_crops(sight, choices, recipe.px)]),
    )


def of_videos(choices: Choices, classes: int, device: torch.device, weights: Path | None) -> Classifier:
    """Return a network on videos. weights: a file to begin with."""
    sampling = sampling_of(choices.model)
    recipe = recipe_of("video", choices, device, sampling.px)
    recipe = replace(recipe, frames=sampling.frames or recipe.frames, stride=sampling.stride or recipe.stride)
    return Classifier(
        choices,
        lambda: make_video_network(
            choices.model, classes, recipe.px, recipe.frames, weights, pretrained=choices.pretrained
        ),
        recipe,
        lambda sight, rng: training_clip(sight, choices, recipe, sampling.segments, rng),
        lambda sight: test_clips(sight, choices, recipe, sampling.segments),
    )

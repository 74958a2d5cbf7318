"""The image and the video task: is it forged, of which kind, by which family.

He et al. 2021, "ForgeryNet: A Versatile Benchmark for Comprehensive Forgery Analysis", sections 4.1.1 and
4.1.3. Of a video with crops single the middle clip is asked; with multi the mean over clips that cover it.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from hashlib import sha256
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from detector.model.backbone import architecture_of
from ingest.records import CropPlan
from memory.records import REAL
from updater.benchmark.data.crops import CropReader, MediaFile
from updater.benchmark.forgerynet.choices import FORENSIC, Choices, Job, class_names, class_of, in_group
from updater.benchmark.forgerynet.measures import absent, image_figures
from updater.benchmark.forgerynet.sights import Sample, look_at
from updater.benchmark.forgerynet.training import (
    Example,
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
from updater.benchmark.report.outcome import Outcome, Table, Values, values
from updater.candidate.gate_inputs import output_of
from updater.data.layouts.entries import LayoutError
from updater.data.layouts.listed import Tally
from updater.settings import UpdaterSettings
from updater.training import discriminant
from updater.training.fit import half_precision
from updater.training.loop import item_weights
from updater.training.processes import by_share
from updater.training.step import Step


@dataclass(frozen=True)
class Classifier:
    """A network that is yet to be trained, and its views of a file: uint8 RGB [..., S, S, 3].

    A training view is by chance; of the test views, [n, ..., S, S, 3], the answer is the mean.
    """

    choices: Choices
    make: Callable[[], nn.Module]
    recipe: NetworkRecipe
    training_view: Callable[[Sample, np.random.Generator], NDArray[np.uint8]]
    test_views: Callable[[Sample], NDArray[np.uint8]]

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
            raise LayoutError("training needs reals and forgeries that can be decoded, and has not both")

        def load(row: int, rng: np.random.Generator) -> Example:
            return self.training_view(sights[row], rng), np.array(targets[row])

        chances = item_weights(np.unique(targets, return_inverse=True)[1], 1.0)
        facts = [(str(s.entry.path), s.box, int(y)) for s, y in zip(sights, targets, strict=True)]
        identity = sha256(repr((facts, self.choices.as_record())).encode()).hexdigest()
        job = TrainingJob(self.make, load, chances, identity, self.recipe, cross_entropy)
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


def measure(job: Job) -> Outcome:
    """Look at the files, train a network and test it.

    With the protocol cross: train on all reals and each group, and test on all reals and each group of the
    same sort. Raises BackboneError for a network that cannot be made, and LayoutError where a side has no
    file of a sort.
    """
    choices, kinds, tally = job.choices, job.kinds, Tally()
    names = class_names(kinds, choices.classes)
    pictures = choices.task == "image"
    own = choices.model == FORENSIC
    classifier = (of_pictures if pictures else of_videos)(choices, len(names), job.device, job.weights)
    seen = {}
    for part, entries in (("train", job.train), ("test", job.test)):
        progress = partial(job.progress, f"look at {part}")
        seen[part] = look_at(entries, choices.input if pictures else "video", job.cache, tally, progress)
        if len({sample.entry.label for sample in seen[part]}) < 2:
            raise LayoutError(f"{part} needs reals and forgeries that can be decoded, and has not both")
    if own:  # it sees each video as a whole
        seen["test"] = [sample for sample in seen["test"] if not sample.frame]
    y, there = _classes(job, seen["test"]), {sample.entry.family for sample in seen["test"]}

    def train_and_ask(samples: Sequence[Sample], name: str) -> tuple[nn.Module, NDArray[np.float64]]:
        """Return the network, and the test files' probabilities of classes, float64 [n, K]."""
        if own:
            return _discriminants(job, samples, seen["test"])
        network = classifier.train(
            samples,
            _classes(job, samples),
            seed=job.seed,
            device=job.device,
            checkpoint=job.folder / f"{name}.safetensors",
            progress=partial(job.progress, f"training on {name}"),
        )
        return network, classifier.probabilities(
            network, seen["test"], job.device, partial(job.progress, "test")
        )

    def figures(p: NDArray[np.float64], group: str) -> Values:
        """Return the figures of all reals and a group."""
        of_it = [_is_of(sample, job, group) for sample in seen["test"]]
        return values(image_figures(p[of_it], y[of_it]), sum(of_it))

    if choices.protocol == "cross":
        both = tuple(dict.fromkeys(kinds.values()))  # replaced comes first, as in the paper's tables 4 and 8
        groups, table = choices.train_on or both, Table()
        tested = both if set(groups) <= {*both} else tuple(kinds)
        tested = tuple(of for of in tested if any(in_group(family, kinds, of) for family in there))
        for group in groups:
            _, p = train_and_ask([sample for sample in seen["train"] if _is_of(sample, job, group)], group)
            every = {other: figures(p, other) for other in tested}
            table[group] = {other: {k: of[k] for k in ("acc", "auc")} for other, of in every.items()}
        return Outcome(table=table, notes=tally.notes())
    train_on = seen["train"]
    if choices.train_on:
        train_on = [sample for sample in train_on if _is_of(sample, job, choices.train_on[0])]
    network, p = train_and_ask(train_on, "all")
    for number in (lacking := absent(p, y)):
        tally.add("classes have no file in the test, and means over classes lack them", names[number])
    families = (*kinds, *sorted(there - {*kinds, REAL}))
    return Outcome(
        figures=values(image_figures(p, y), len(y)),
        families={name: figures(p, name) for name in families if name in there},
        about={
            "parameters": sum(parameter.numel() for parameter in network.parameters()),
            "absent": [names[number] for number in lacking],
            "trained_on": len(train_on),
            "tested_on": len(y),
            "recipe": None if own else asdict(classifier.recipe) | {"falls": list(classifier.recipe.falls)},
        },
        notes=tally.notes(),
    )


def _discriminants(
    job: Job, train_on: Sequence[Sample], test_on: Sequence[Sample]
) -> tuple[nn.Module, NDArray[np.float64]]:
    """Solve the release's linear discriminants of families over its own features; a class has its families'.

    Returns the network, and the test files' probabilities of classes. Raises what `CropReader.read` raises,
    and LayoutError where the sandbox refuses a file.
    """
    plan, parts = CropPlan(), []
    with CropReader(plan, job.cache.parent / "crops", job.progress) as reader:
        for part, samples in (("train", train_on), ("test", test_on)):
            files = [
                MediaFile(sample.entry.path, f"{part}/{number}", sample.entry.family, sample.entry.group)
                for number, sample in enumerate(samples)
            ]
            parts.append(reader.read(part, "forgerynet", files))
    if notes := reader.tally.notes():
        raise LayoutError(f"of {len(train_on) + len(test_on)} files {notes[0]}: remove them")
    families = (REAL, *sorted({*parts[0].families} - {REAL}))
    architecture = architecture_of(UpdaterSettings().backbone, crop_px=plan.crop_px, frozen=True)
    step = Step(parts[0], families, architecture, device=job.device, progress=job.progress)
    network = discriminant.learn(step).network
    logits = output_of(network, parts[1], job.device, "test", job.progress).logits
    p = np.zeros((len(test_on), job.choices.classes))
    for family, column in zip(families, logits.double().softmax(1).T.numpy(), strict=True):
        p[:, class_of(family, job.kinds, job.choices.classes)] += column
    return network, p


def _is_of(sample: Sample, job: Job, group: str) -> bool:
    return sample.entry.family == REAL or in_group(sample.entry.family, job.kinds, group)


def _classes(job: Job, samples: Sequence[Sample]) -> NDArray[np.int64]:
    """Return the numbers of the files' classes, int64 [n]."""
    return np.array([class_of(s.entry.family, job.kinds, job.choices.classes) for s in samples], np.int64)

"""The image and the video task: is it forged, of which kind, by which family.

He et al. 2021, "ForgeryNet: A Versatile Benchmark for Comprehensive Forgery Analysis", sections 4.1.1 and
4.1.3.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray
from torch import nn

from updater.benchmark.forgerynet.choices import KINDS, Job, class_names, class_of, in_group
from updater.benchmark.forgerynet.classifiers import Classifier, of_pictures, of_videos
from updater.benchmark.forgerynet.measures import absent, image_figures
from updater.benchmark.forgerynet.sights import Sample, sights
from updater.benchmark.forgerynet.views import video_sights
from updater.benchmark.report.outcome import Outcome, Table, Values, values
from updater.data.layouts.entries import LayoutError
from updater.data.layouts.listed import Tally


def measure(job: Job) -> Outcome:
    """Look at the files, train a network and test it.

    Raises NetworkError and BackboneError for a model that is none, and LayoutError where a side has no file
    of a sort.
    """
    choices, tally = job.choices, Tally()
    make = of_pictures if choices.task == "image" else of_videos
    names = class_names(job.kinds, choices.classes)
    classifier = make(choices, len(names), job.device, job.weights)
    seen = {}
    for part, entries in (("train", job.train), ("test", job.test)):
        progress = partial(job.progress, f"look at {part}")
        if choices.task == "image":
            seen[part] = sights(entries, choices.input, job.cache, tally, progress)
        else:
            seen[part] = video_sights(entries, job.cache, tally, progress)
        if len({sight.entry.label for sight in seen[part]}) < 2:
            raise LayoutError(f"{part} needs reals and forgeries that can be decoded, and has not both")
    side = _Sides(job, classifier, seen["train"], seen["test"])
    if choices.protocol == "cross":
        return Outcome(table=side.table(), notes=tally.notes())
    train_on = side.with_group(choices.train_on[0]) if choices.train_on else side.train_on
    network = side.train(train_on, "all")
    p, y = side.probabilities(network), side.classes(side.test_on)
    families = {
        family: _figures(p, y, np.array([v.entry.family in (family, "real") for v in side.test_on]))
        for family in job.kinds
        if any(v.entry.family == family for v in side.test_on)
    }
    return Outcome(
        figures=values(image_figures(p, y), len(y)),
        families=families,
        about={
            "parameters": sum(parameter.numel() for parameter in network.parameters()),
            "absent": [names[number] for number in absent(p, y)],
            "trained_on": len(train_on),
            "tested_on": len(y),
            "recipe": asdict(classifier.recipe) | {"falls": list(classifier.recipe.falls)},
        },
        notes=tally.notes(),
    )


@dataclass(frozen=True)
class _Sides:
    """The training and the test files."""

    job: Job
    classifier: Classifier
    train_on: Sequence[Sample]
    test_on: Sequence[Sample]

    def table(self) -> Table:
        """Train on all reals and each group, and test on all reals and each group of the same sort."""
        job = self.job
        groups = job.choices.train_on or KINDS
        tested = KINDS if set(groups) <= set(KINDS) else tuple(job.kinds)
        y = self.classes(self.test_on)
        table: Table = {}
        for group in groups:
            p = self.probabilities(self.train(self.with_group(group), group))
            table[group] = {}
            for other in tested:
                of_it = np.array(
                    [
                        not sample.entry.label or in_group(sample.entry.family, job.kinds, other)
                        for sample in self.test_on
                    ]
                )
                if y[of_it].any():
                    every = _figures(p, y, of_it)
                    table[group][other] = {name: every[name] for name in ("acc", "auc")}
        return table

    def train(self, train_on: Sequence[Sample], name: str) -> nn.Module:
        """Train a network on some of the files."""
        return self.classifier.train(
            train_on,
            self.classes(train_on),
            seed=self.job.seed,
            device=self.job.device,
            checkpoint=self.job.folder / f"{name}.safetensors",
            progress=partial(self.job.progress, f"training on {name}"),
        )

    def probabilities(self, network: nn.Module) -> NDArray[np.float64]:
        """Return the probabilities of the test files' classes, float64 [n, K]."""
        progress = partial(self.job.progress, "test")
        return self.classifier.probabilities(network, self.test_on, self.job.device, progress)

    def with_group(self, group: str) -> list[Sample]:
        """Return the reals that are trained on, and the forgeries of a group."""
        return [
            sample
            for sample in self.train_on
            if not sample.entry.label or in_group(sample.entry.family, self.job.kinds, group)
        ]

    def classes(self, sights: Sequence[Sample]) -> NDArray[np.int64]:
        """Return the numbers of the files' classes, int64 [n]."""
        kinds, count = self.job.kinds, self.job.choices.classes
        return np.array([class_of(sight.entry.family, kinds, count) for sight in sights], np.int64)


def _figures(p: NDArray[np.float64], y: NDArray[np.int64], chosen: NDArray[np.bool_]) -> Values:
    return values(image_figures(p[chosen], y[chosen]), int(chosen.sum()))

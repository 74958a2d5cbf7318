"""DeeperForensics' protocol as a benchmark: each training is tested on each variant, and by distortion."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from updater.benchmark.deeperforensics.choices import RunChoices, variants_of
from updater.benchmark.deeperforensics.models import Model, Rater, Reading, of_both_labels
from updater.benchmark.deeperforensics.tree import HIDDEN, Data
from updater.benchmark.report.harness import Benchmark, Seed
from updater.benchmark.report.outcome import Outcome, Values, values
from updater.distortions.deeperforensics import DEEPERFORENSICS
from updater.distortions.distortion import LEVELS, Step
from updater.measures import auroc
from updater.progress import Progress

CLIPS_BY_DISTORTION = 48
"""of the std test, half of them real, under each distortion at each level"""
_LEAST = 1e-7
T = TypeVar("T")


@dataclass(frozen=True)
class Clips(Generic[T]):
    """All clips of a run, as its model reads them."""

    train: Mapping[str, T]
    """by variant"""
    test: Mapping[str, T]
    """by variant, and the hidden test"""
    single: Mapping[str, T]
    """by TYPE:LEVEL, clips of std's test under one distortion"""


def benchmark(choices: RunChoices, data: Data, model: Model[T], reading: Reading) -> Benchmark[Clips[T]]:
    """Return the protocol as it is run."""

    def measure_seed(media: Clips[T], seed: Seed) -> Outcome:
        outcome = measure(choices, media, model, seed)
        return outcome.model_copy(update={"notes": (*data.notes, *reading.tally.notes())})

    return Benchmark(
        "deeperforensics",
        data.name,
        data.digest,
        choices.as_record(),
        (choices.model,),
        lambda progress: read_media(choices, data, model, progress),
        measure_seed,
    )


def read_media(choices: RunChoices, data: Data, model: Model[T], progress: Progress) -> Clips[T]:
    """Read the media of the choices. Raises the errors of the model's reading, and ClipError."""
    train = {name: model.read(f"{name} train", data.part(name, "train")) for name in choices.trained_variants}
    test = {name: model.read(f"{name} test", data.part(name, "test")) for name in choices.test}
    if data.hidden:
        test[HIDDEN] = model.read(f"{HIDDEN} test", data.hidden)
    some = of_both_labels(data.part("std", "test"), CLIPS_BY_DISTORTION)
    steps = [Step(name, level) for name in DEEPERFORENSICS for level in LEVELS]
    progress("each distortion at each level", 0, len(steps))
    return Clips(train, test, model.under_each(some, steps))


def measure(choices: RunChoices, media: Clips[T], model: Model[T], seed: Seed) -> Outcome:
    """Train on each of the choices' trainings with one seed, and test it on everything."""
    table, by_distortion = {}, {}
    for training in choices.train:
        judge = model.train([media.train[name] for name in variants_of(training)], training, seed)
        table[training] = {name: _figures(model, judge, test) for name, test in media.test.items()}
        if training == choices.of_distortions:
            by_distortion = {name: _figures(model, judge, some) for name, some in media.single.items()}
    return Outcome(
        table=table,
        by_distortion=by_distortion,
        about={"parameters": judge.parameters, "by_distortion_trained_on": choices.of_distortions},
    )


def _figures(model: Model[T], judge: Rater[T], clips: T) -> Values:
    labels = model.labels(clips)
    return values(figures(judge.forged(clips), labels), len(labels))


def figures(forged: ArrayLike, labels: ArrayLike) -> dict[str, float]:
    """Return acc, auc, balanced_acc and log_loss of clips, forged where they score 0.5 or more.

    forged: how probably each of n clips is forged, [n] in 0..1; labels: 1 forged, 0 real. acc is the paper's
    (section 5.1): the share of clips that are told right, whatever the classes' sizes. auc and balanced_acc
    are not a number where a class is absent; log_loss is in nats, probabilities kept 1e-7 from 0 and 1.
    """
    scores, fake = np.asarray(forged, float), np.asarray(labels, int) == 1
    right = (scores >= 0.5) == fake
    both = bool(fake.any()) and not bool(fake.all())
    kept = np.clip(scores, _LEAST, 1 - _LEAST)
    return {
        "acc": float(right.mean()) if len(right) else math.nan,
        "auc": float(auroc(scores[fake], scores[~fake])) if both else math.nan,
        "balanced_acc": float((right[fake].mean() + right[~fake].mean()) / 2) if both else math.nan,
        "log_loss": float(-np.log(np.where(fake, kept, 1 - kept)).mean()) if len(right) else math.nan,
    }

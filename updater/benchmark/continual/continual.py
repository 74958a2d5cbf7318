"""A stream learnt task by task, with measurements after each; an interrupted run goes on."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from memory.rehearsal import herd
from updater.benchmark.continual.scoring import (
    CalibratedModel,
    Draws,
    JudgedItems,
    calibrate_model,
    network_output,
    rejection_draws,
)
from updater.benchmark.continual.setup import Setup
from updater.benchmark.continual.streams import distort_items
from updater.benchmark.data.tasks import OutlierSet, Stream
from updater.benchmark.learners.methods import LEARNERS, load_learnt, save_learnt
from updater.benchmark.report.outcome import Values, values
from updater.benchmark.report.results import (
    Figures,
    RejectionScores,
    Resamples,
    Result,
    Unseen,
    aa_m,
    average_precision,
    mean_ap,
    measure_unseen,
)
from updater.benchmark.report.run_folder import seconds_in, timing
from updater.candidate.calibrate import reals
from updater.data.training_data import LabelledCrops
from updater.measures import auroc
from updater.progress import Progress, with_prefix
from updater.training import schemes
from updater.training.processes import broadcast, is_first
from updater.training.step import Step, TrainedModel

Part = TypeVar("Part", bound=BaseModel)


def learn_step(
    setup: Setup, train: LabelledCrops, classes: tuple[str, ...], items: int, **rest: Any
) -> TrainedModel:
    """Learn a step as the setup says, as long as so many items take. rest: the step's other fields."""
    recipe = setup.recipe(items, first=rest.get("previous") is None)
    return LEARNERS[setup.learner](
        Step(
            train,
            classes,
            setup.architecture,
            options=setup.options,
            recipe=recipe,
            start_from=setup.begin(classes),
            device=setup.torch_device,
            **rest,
        )
    )


def learn_once(path: Path, setup: Setup, train: LabelledCrops, *of: Any, **rest: Any) -> TrainedModel:
    """Return the network that an earlier run wrote to the path, or learn it, as `learn_step` does."""
    if (kept := load_learnt(path, setup.torch_device)) is not None:
        return kept
    # The seconds are written before the weights, and so whatever is loaded has its seconds.
    with timing(path.with_suffix(".json")):
        learnt = learn_step(setup, train, *of, **rest)
    if is_first():
        save_learnt(path, learnt)
    return learnt


@dataclass
class Continual:
    """One run over a stream: column by column of B, from whatever its folder holds of an earlier try.

    The folder, which is this run's alone, has, after task number t, t.json (the seconds of training) and
    t.safetensors (the network and what its learner keeps), each in place only when it is whole. Where there
    are draws of the stream's images, the figures of rejection are also of these.
    """

    stream: Stream
    setup: Setup
    seed: int
    folder: Path
    progress: Progress
    images: Resamples | None = None
    memory: dict[str, LabelledCrops] = field(default_factory=dict)
    """exemplars of each class, the best first"""
    unseen: dict[str, list[Unseen]] = field(default_factory=dict)
    """by score, the figures of rejection after each step that has outliers, all sets pooled"""
    unseen_sets: dict[str, dict[str, list[Unseen]]] = field(default_factory=dict)
    """the same by score and by outlier set, each on its own"""
    drawn: list[Draws] = field(default_factory=list)
    """of the first score, after each step that has outliers"""
    on_tests: list[JudgedItems] = field(default_factory=list)
    """the tests of all tasks so far, after the last step"""
    domains: dict[str, Values] = field(default_factory=dict)
    """where there are reals, the figures of each task and of each outlier set, after the last step"""
    by_distortion: dict[str, Values] = field(default_factory=dict)
    """the accuracy on each task and their mean, after the last step"""

    def run(self) -> tuple[list[list[float]], list[Result], dict[str, RejectionScores]]:
        """Learn every task; return the columns of B, each step's figures, and scores of outliers by step."""
        learnt: TrainedModel | None = None
        columns: list[list[float]] = []
        steps: list[Result] = []
        scores: dict[str, RejectionScores] = {}
        for number, task in enumerate(self.stream.tasks):
            train, file = self._train(number), self.folder / f"{number}.safetensors"
            learnt = learn_once(
                file,
                self.setup,
                # What is in its sums must not come again.
                task.train if self.setup.architecture.frozen else train,
                tuple(name for known in self.stream.tasks[: number + 1] for name in known.classes),
                len(train),
                previous=learnt,
                seed=self.seed,
                checkpoint=self.folder / "checkpoint.safetensors",
                progress=with_prefix(self.progress, task.name),
            )
            began = time.perf_counter()
            self._remember(learnt, task.train)
            judge = self._judge(learnt, number, train)
            column, figures = self._measure(judge, number, scores)
            columns.append(column)
            training = seconds_in(file.with_suffix(".json"))
            seconds = {"training": training, "evaluation": time.perf_counter() - began}
            steps.append(Result(task=task.name, figures=figures, seconds=seconds))
        for text in self.setup.distortions:
            self.progress(f"under {text}", 0, 0)
            tests = [judge.judge(distort_items(task.test, self.stream, text)) for task in self.stream.tasks]
            mean = values({"acc": float(np.mean([test.right.mean() for test in tests]))}, None)
            named = zip(self.stream.tasks, tests, strict=True)
            self.by_distortion[text] = {f"acc {t.name}": real_fake(of)["acc"] for t, of in named} | mean
        return columns, steps, scores

    def _train(self, number: int) -> LabelledCrops:
        """Return the task's items and the exemplars; for joint training, the items of every task so far."""
        if "joint" in self.setup.learner:
            return LabelledCrops.join([task.train for task in self.stream.tasks[: number + 1]])
        return LabelledCrops.join([self.stream.tasks[number].train, *self.memory.values()])

    def _remember(self, learnt: TrainedModel, train: LabelledCrops) -> None:
        """Herd the new classes' exemplars, and cut the old ones' to their share of the budget."""
        families = np.array(train.families)
        embedding = network_output(learnt, train, self.setup.torch_device).embedding.float()
        features = broadcast(embedding).numpy()
        counts = {name: len(kept) for name, kept in self.memory.items()} | train.counts()
        # As the papers share it: the same for every class, and what one cannot fill stays empty.
        places = {name: min(self.setup.memory // len(counts), n) for name, n in counts.items()}
        mine = {name: np.flatnonzero(families == name) for name in train.counts()}
        new = {
            name: train.take(rows[herd(features[rows], places[name])].tolist()) for name, rows in mine.items()
        }
        old = {name: kept.take(range(places[name])) for name, kept in self.memory.items()}
        self.memory = {name: kept for name, kept in (old | new).items() if len(kept)}

    def _judge(self, learnt: TrainedModel, number: int, train: LabelledCrops) -> CalibratedModel:
        held = LabelledCrops.join([task.calibration for task in self.stream.tasks[: number + 1]])
        # Without any the gate is fitted on what was trained on, and nothing is told of its thresholds.
        held = held if len(held) else train
        task = self.stream.tasks[number]
        new = len(task.train) if "joint" not in self.setup.learner else None
        newest = LabelledCrops.join([task.calibration, *self.memory.values()])
        return calibrate_model(learnt, self.setup, train, held, new=new, validation=newest, seed=self.seed)

    def _measure(
        self, judge: CalibratedModel, number: int, scores: dict[str, RejectionScores]
    ) -> tuple[list[float], Figures]:
        tasks = self.stream.tasks[: number + 1]
        self.progress(f"{tasks[-1].name}: evaluation", 0, 0)
        on_tests = self.on_tests = [judge.judge(task.test) for task in tasks]
        column = [accuracy(test) for test in on_tests]
        figures = figures_of(on_tests, judge)
        out_of_fold = any(len(task.calibration) for task in tasks)
        if not out_of_fold:
            figures = figures.model_copy(update={"reals_unknown": None, "reals_fake": None})
        at = {outlier.name: outlier.at(number, len(self.stream.tasks)) for outlier in self.stream.outliers}
        sets = {name: judge.judge(part) for name, part in at.items() if len(part)}
        if reals(judge.learnt.classes).any():
            named = {task.name: test for task, test in zip(tasks, on_tests, strict=True)} | sets
            self.domains = {name: real_fake(judged) for name, judged in named.items()}
        if not sets:
            return column, figures
        known, pooled = JudgedItems.join(on_tests), JudgedItems.join(list(sets.values()))
        first = self.setup.rejection[0]
        for name in self.setup.rejection:
            threshold = judge.gated.gate.unknown_threshold if name == "fused" and out_of_fold else None
            by_set = self.unseen_sets.setdefault(name, {})
            for outliers, unseen in [*sets.items(), (None, pooled)]:
                rejected = rejection_scores(known, unseen, name)
                rows = by_set.setdefault(outliers, []) if outliers else self.unseen.setdefault(name, [])
                rows.append(measure_unseen(rejected, threshold))
            if name == first:
                scores[f"step {number + 1}"] = rejected
        self.drawn.append(rejection_draws("unseen", known, pooled, first, self.images))
        return column, figures.model_copy(update={"unseen": self.unseen[first][-1]})


def real_fake(judged: JudgedItems) -> Values:
    """Return the accuracy, AUC and AP of items, 0..1: CDDB's table 11 of a domain, 12 under a distortion."""
    fake, score = ~reals(judged.families), judged.fake_probability
    figures = {"auc": auroc(score[fake], score[~fake]), "ap": average_precision(score[fake], score[~fake])}
    return values({"acc": float(judged.right.mean())} | figures, len(fake))


def accuracy(judged: JudgedItems) -> float:
    """Return the share of items for which the highest logit is right, in points."""
    return 100 * float(judged.right.mean())


def figures_of(on_tests: Sequence[JudgedItems], judge: CalibratedModel) -> Figures:
    """Return the figures of one network on the tests of the tasks that it knows."""
    options = judge.setup.options
    names = schemes.columns(judge.learnt.classes, options)
    truly_fake = [~reals(test.families) for test in on_tests]
    labels = np.concatenate([test.labels for test in on_tests])
    real = ~np.concatenate(truly_fake)
    recognised, both_kinds = None, all(0 < fake.sum() < len(fake) for fake in truly_fake)
    if options.scheme != "bc":
        called = [np.array(names)[test.column] for test in on_tests]
        recognised = aa_m(called, [test.families for test in on_tests])
    fakes, others = _apart([test.fake_probability for test in on_tests], truly_fake)
    by_maxima = _apart([test.fake_by_maxima for test in on_tests], truly_fake)
    return Figures(
        aa=float(np.mean([accuracy(test) for test in on_tests])),
        seen_accuracy=100 * float(np.concatenate([test.right for test in on_tests]).mean()),
        aa_m=recognised,
        map=mean_ap(*by_maxima) if both_kinds else None,
        map_mass=mean_ap(fakes, others) if both_kinds else None,
        real_fake_auc=float(np.mean(list(map(auroc, fakes, others)))) if both_kinds else None,
        closed_set_accuracy=recognised,
        reals_unknown=float((labels[real] == "unknown").mean()) if real.any() else None,
        reals_fake=float((labels[real] == "fake").mean()) if real.any() else None,
    )


def _apart(
    scores: Sequence[NDArray[np.float32]], fake: Sequence[NDArray[np.bool_]]
) -> tuple[list[NDArray[np.float32]], list[NDArray[np.float32]]]:
    pairs = list(zip(scores, fake, strict=True))
    return [of[is_fake] for of, is_fake in pairs], [of[~is_fake] for of, is_fake in pairs]


def rejection_scores(known: JudgedItems, unseen: JudgedItems, name: str) -> RejectionScores:
    """Return the scores of known test items and of items never trained on, whose reals are the control."""
    real, score = reals(unseen.families), unseen.rejection[name]
    return RejectionScores(
        known=known.rejection[name],
        unknown=score[~real],
        control=score[real],
        known_energy=known.energy,
        unknown_energy=unseen.energy[~real],
        known_own_energy=known.energy,
        unknown_own_energy=unseen.energy[~real],
        control_own_energy=unseen.energy[real],
    )


def mean_of(kind: type[Part], parts: Sequence[Part]) -> Part:
    """Return the mean of each figure over the parts that have it."""
    having = {n: [of for part in parts if (of := getattr(part, n)) is not None] for n in kind.model_fields}
    return kind(**{name: float(np.mean(values)) if values else None for name, values in having.items()})


def means_over_sets(sets: Mapping[str, Unseen], outliers: Iterable[OutlierSet]) -> dict[str, Unseen]:
    """Return the means over all sets, and over those that are near or far, by the names of `Figures`.

    sets: the figures of each set that was measured, its mean over the steps. There is no mean of none.
    Miao et al. 2024 (OpenCIL), section 3.3 and appendix C.2: a table's figure is the mean over the sets.
    Pooled, a large set outweighs the others, and easy outliers hide hard ones.
    """
    distances = {outlier.name: outlier.distance for outlier in outliers}
    parts = {"each_set": list(sets.values())}
    for distance in ("near", "far"):
        parts[distance] = [unseen for name, unseen in sets.items() if distances[name] == distance]
    return {name: mean_of(Unseen, part) for name, part in parts.items() if part}

"""A stream learnt task by task, with measurements after each; an interrupted run goes on."""

import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from memory.rehearsal import herd
from updater.benchmark.continual.scoring import (
    CalibratedModel,
    JudgedItems,
    calibrate_model,
    herding_features,
)
from updater.benchmark.continual.setup import Setup
from updater.benchmark.data.tasks import OutlierSet, Stream
from updater.benchmark.learners.learnt_file import load_learnt, save_learnt
from updater.benchmark.learners.methods import LEARNERS
from updater.benchmark.report.results import (
    Figures,
    RejectionScores,
    Result,
    Unseen,
    aa_m,
    mean_ap,
    measure_unseen,
)
from updater.benchmark.report.run_folder import seconds_in, timing
from updater.candidate.calibrate import reals
from updater.data.training_data import LabelledCrops
from updater.measures import auroc
from updater.progress import Progress, with_prefix
from updater.training import schemes, step
from updater.training.processes import broadcast, is_first
from updater.training.step import TrainedModel

Part = TypeVar("Part", bound=BaseModel)


class Continual:
    """One run over a stream: column by column of B, from whatever its folder holds of an earlier try.

    The folder, which is this run's alone, has, after task number t, t.json (the seconds of training) and
    t.safetensors (the network and what its learner keeps), each in place only when it is whole.
    """

    def __init__(self, stream: Stream, setup: Setup, seed: int, folder: Path, progress: Progress) -> None:
        self.stream, self.setup, self.seed, self.progress = stream, setup, seed, progress
        self.folder = folder
        self.memory: dict[str, LabelledCrops] = {}
        """exemplars of each class, the best first"""
        self.unseen: dict[str, list[Unseen]] = {}
        """by score, the figures of rejection after each step that has outliers, all sets pooled"""
        self.unseen_sets: dict[str, dict[str, list[Unseen]]] = {}
        """the same by score and by outlier set, each on its own"""
        self.on_tests: list[JudgedItems] = []
        """the tests of all tasks so far, after the last step"""

    def run(self) -> tuple[list[list[float]], list[Result], dict[str, RejectionScores]]:
        """Learn every task; return the columns of B, each step's figures, and scores of outliers by step."""
        learnt: TrainedModel | None = None
        columns: list[list[float]] = []
        steps: list[Result] = []
        scores: dict[str, RejectionScores] = {}
        for number, task in enumerate(self.stream.tasks):
            train = self._train(number)
            learnt = self._learn_task(number, learnt, train)
            began = time.perf_counter()
            self._remember(learnt, task.train)
            judge = self._judge(learnt, number, train)
            column, figures, own_scores = self._measure(judge, number)
            scores |= own_scores
            columns.append(column)
            seconds = {
                "training": seconds_in(self._seconds_file(number)),
                "evaluation": time.perf_counter() - began,
            }
            steps.append(Result(task=task.name, figures=figures, seconds=seconds))
        return columns, steps, scores

    def _train(self, number: int) -> LabelledCrops:
        """Return the task's items and the exemplars; for joint training, the items of every task so far."""
        if self.setup.learner == "joint":
            return LabelledCrops.join([task.train for task in self.stream.tasks[: number + 1]])
        return LabelledCrops.join([self.stream.tasks[number].train, *self.memory.values()])

    def _learn_task(self, number: int, previous: TrainedModel | None, train: LabelledCrops) -> TrainedModel:
        """Learn one task, or load its network from an earlier run."""
        names = self._classes(number)
        weights, setup = self.folder / f"{number}.safetensors", self.setup
        if (kept := load_learnt(weights, setup.torch_device)) is not None:
            return kept
        # The seconds are written before the weights, and so whatever is loaded has its seconds.
        with timing(self._seconds_file(number)):
            learnt = LEARNERS[setup.learner](
                step.Step(
                    # What is in its sums must not come again.
                    self.stream.tasks[number].train if setup.architecture.frozen else train,
                    names,
                    setup.architecture,
                    previous=previous,
                    options=setup.options,
                    recipe=setup.recipe(len(train), first=previous is None),
                    seed=self.seed,
                    device=setup.torch_device,
                    checkpoint=self.folder / "checkpoint.safetensors",
                    start_from=setup.start_from,
                    progress=with_prefix(self.progress, self.stream.tasks[number].name),
                )
            )
        if is_first():
            save_learnt(weights, learnt)
        return learnt

    def _seconds_file(self, number: int) -> Path:
        return self.folder / f"{number}.json"

    def _classes(self, number: int) -> tuple[str, ...]:
        return tuple(name for task in self.stream.tasks[: number + 1] for name in task.classes)

    def _remember(self, learnt: TrainedModel, train: LabelledCrops) -> None:
        """Herd the new classes' exemplars, and cut the old ones' to their share of the budget."""
        families = np.array(train.families)
        features = broadcast(herding_features(learnt, train, self.setup.torch_device).cpu()).numpy()
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
        new = len(self.stream.tasks[number].train) if self.setup.learner != "joint" else None
        return calibrate_model(learnt, self.setup, train, held, new=new, seed=self.seed)

    def _measure(
        self, judge: CalibratedModel, number: int
    ) -> tuple[list[float], Figures, dict[str, RejectionScores]]:
        tasks = self.stream.tasks[: number + 1]
        self.progress(f"{tasks[-1].name}: evaluation", 0, 0)
        on_tests = self.on_tests = [judge.judge(task.test) for task in tasks]
        column = [accuracy(test) for test in on_tests]
        figures = figures_of(on_tests, judge)
        out_of_fold = any(len(task.calibration) for task in tasks)
        if not out_of_fold:
            figures = figures.model_copy(update={"reals_unknown": None, "reals_fake": None})
        scores: dict[str, RejectionScores] = {}
        outliers = {
            outlier.name: outlier.at(number, len(self.stream.tasks)) for outlier in self.stream.outliers
        }
        unknown = {name: part for name, part in outliers.items() if len(part)}
        if unknown:
            judged = judge.judge(LabelledCrops.join(list(unknown.values())))
            ends = np.cumsum([len(part) for part in unknown.values()])
            sets = {
                name: judged.take(slice(end - len(part), end))
                for (name, part), end in zip(unknown.items(), ends, strict=True)
            }
            for name in self.setup.rejection:
                rejected = rejection_scores(on_tests, judged, name)
                scores.setdefault(f"step {number + 1}", rejected)
                threshold = judge.gated.gate.unknown_threshold if name == "fused" and out_of_fold else None
                self.unseen.setdefault(name, []).append(measure_unseen(rejected, threshold))
                by_set = self.unseen_sets.setdefault(name, {})
                for outlier_set, set_ in sets.items():
                    own = measure_unseen(rejection_scores(on_tests, set_, name), threshold)
                    by_set.setdefault(outlier_set, []).append(own)
            first = self.unseen[self.setup.rejection[0]]
            figures = figures.model_copy(update={"unseen": first[-1]})
        return column, figures, scores


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
        aa_m=recognised,
        map=mean_ap(*by_maxima) if both_kinds else None,
        map_mass=mean_ap(fakes, others) if both_kinds else None,
        real_fake_auc=float(np.mean([auroc(*pair) for pair in zip(fakes, others, strict=True)]))
        if both_kinds
        else None,
        closed_set_accuracy=recognised,
        reals_unknown=float((labels[real] == "unknown").mean()) if real.any() else None,
        reals_fake=float((labels[real] == "fake").mean()) if real.any() else None,
    )


def _apart(
    scores: Sequence[NDArray[np.float32]], fake: Sequence[NDArray[np.bool_]]
) -> tuple[list[NDArray[np.float32]], list[NDArray[np.float32]]]:
    pairs = list(zip(scores, fake, strict=True))
    return [of[is_fake] for of, is_fake in pairs], [of[~is_fake] for of, is_fake in pairs]


def rejection_scores(known: Sequence[JudgedItems], unseen: JudgedItems, name: str) -> RejectionScores:
    """Return the scores of known test items and of items never trained on, whose reals are the control."""
    real = reals(unseen.families)
    energies = np.concatenate([part.energy for part in known])
    return RejectionScores(
        known=np.concatenate([_score(part, name) for part in known]),
        unknown=_score(unseen, name)[~real],
        control=_score(unseen, name)[real],
        known_energy=energies,
        unknown_energy=unseen.energy[~real],
        known_own_energy=energies,
        unknown_own_energy=unseen.energy[~real],
        control_own_energy=unseen.energy[real],
    )


def _score(judged: JudgedItems, name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return judged.unknown_score if name == "fused" else judged.rejection[name].astype(np.float32)


def mean_of(kind: type[Part], parts: Sequence[Part]) -> Part:
    """Return the mean of each figure over the parts that have it."""
    means = {}
    for name in kind.model_fields:
        values = [getattr(part, name) for part in parts if getattr(part, name) is not None]
        means[name] = float(np.mean(values)) if values else None
    return kind(**means)


def means_over_sets(sets: Mapping[str, Unseen], outliers: Iterable[OutlierSet]) -> dict[str, Unseen]:
    """Return the means over all sets, and over those that are near or far, by the names of `Figures`.

    sets: the figures of each set that was measured, its mean over the steps. There is no mean of none.
    Miao et al. 2024 (OpenCIL), section 3.3 and appendix C.2: a table's figure is the mean over the sets.
    Pooled, a large set outweighs the others, and easy outliers hide hard ones.
    """
    distances = {outlier.name: outlier.distance for outlier in outliers}
    parts = {
        "each_set": list(sets.values()),
        "near": [unseen for name, unseen in sets.items() if distances[name] == "near"],
        "far": [unseen for name, unseen in sets.items() if distances[name] == "far"],
    }
    return {name: mean_of(Unseen, part) for name, part in parts.items() if part}

"""A stream learnt task by task, with what is measured after each; an interrupted run goes on."""

import hashlib
import json
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from detector.network import Network
from memory.crop_store import write_durably
from memory.herding import herd, shares
from updater.benchmark.items import joined
from updater.benchmark.results import Figures, RejectionScores, Step, Unseen, measure_unseen
from updater.benchmark.scoring import Judge, Judged, calibrated, herding_features
from updater.benchmark.setup import Progress, Setup
from updater.calibrate import reals
from updater.data.tasks import Stream
from updater.learners import schemes, step
from updater.learners.methods import LEARNERS
from updater.learners.step import Learnt
from updater.measures import aa_m, auroc, mean_ap
from updater.training_data import LabelledCrops


class Continual:
    """One run over a stream: column by column of B, from whatever its folder holds of an earlier try.

    The folder has, after task number t, t.json (what was measured) and t.safetensors (the network and what
    its learner keeps), each in place only when it is whole.
    """

    def __init__(self, stream: Stream, setup: Setup, seed: int, folder: Path, progress: Progress) -> None:
        self.stream, self.setup, self.seed, self.progress = stream, setup, seed, progress
        made_from = json.dumps([stream.digest, setup.described(), seed], sort_keys=True, default=list)
        self.folder = folder / hashlib.sha256(made_from.encode()).hexdigest()[:16]
        self.folder.mkdir(parents=True, exist_ok=True)
        self.memory: dict[str, LabelledCrops] = {}
        """exemplars of each class, the best first"""

    def run(self) -> tuple[list[list[float]], list[Step], dict[str, RejectionScores]]:
        """Learn every task; return the columns of B, each step's figures, and scores of outliers by step."""
        learnt: Learnt | None = None
        columns: list[list[float]] = []
        steps: list[Step] = []
        scores: dict[str, RejectionScores] = {}
        for number, task in enumerate(self.stream.tasks):
            train = self._train(number)
            began = time.perf_counter()
            learnt = self._learnt(number, learnt, train)
            trained_s = time.perf_counter() - began
            self._remember(learnt, task.train)
            judge = self._judge(learnt, number, train)
            column, figures, found = self._measured(judge, number)
            scores |= found
            columns.append(column)
            seconds = {
                "training": self._seconds(number, trained_s),
                "evaluation": time.perf_counter() - began,
            }
            steps.append(Step(task=task.name, figures=figures, seconds=seconds))
        return columns, steps, scores

    def _train(self, number: int) -> LabelledCrops:
        """Return the task's items and the exemplars; for joint training, the items of every task so far."""
        if self.setup.learner == "joint":
            return joined([task.train for task in self.stream.tasks[: number + 1]])
        return joined([self.stream.tasks[number].train, *self.memory.values()])

    def _learnt(self, number: int, previous: Learnt | None, train: LabelledCrops) -> Learnt:
        """Learn one task, or load what was learnt here before."""
        names = self._classes(number)
        weights, setup = self.folder / f"{number}.safetensors", self.setup
        if weights.is_file():
            return load_learnt(weights, names, setup)
        recipe = setup.recipe(len(train), first=previous is None)
        learnt = LEARNERS[setup.learner](
            step.Step(
                train,
                names,
                setup.architecture,
                previous=previous,
                options=setup.options,
                recipe=recipe,
                seed=self.seed,
                device=setup.torch_device,
                checkpoint=self.folder / "checkpoint.safetensors",
                progress=lambda stage, *at: self.progress(f"{self.stream.tasks[number].name}: {stage}", *at),
            )
        )
        save_learnt(weights, learnt)
        return learnt

    def _seconds(self, number: int, trained_s: float) -> float:
        """Return the seconds that training took when it was done, which may have been in an earlier try."""
        file = self.folder / f"{number}.json"
        if not file.is_file():
            write_durably(file, json.dumps({"training": trained_s}).encode())
        return float(json.loads(file.read_bytes())["training"])

    def _classes(self, number: int) -> tuple[str, ...]:
        return tuple(name for task in self.stream.tasks[: number + 1] for name in task.classes)

    def _remember(self, learnt: Learnt, train: LabelledCrops) -> None:
        """Herd the new classes' exemplars, and cut the old ones' to their share of the budget."""
        families = np.array(train.families)
        features = herding_features(learnt, train, self.setup.torch_device)
        counts = {name: len(kept) for name, kept in self.memory.items()} | train.counts()
        places = shares(counts, self.setup.memory)
        new = {
            name: train.take(int(at) for at in mine[herd(features[mine], places[name])])
            for name in train.counts()
            for mine in [np.flatnonzero(families == name)]
        }
        old = {name: kept.take(range(places[name])) for name, kept in self.memory.items()}
        self.memory = {name: kept for name, kept in (old | new).items() if len(kept)}

    def _judge(self, learnt: Learnt, number: int, train: LabelledCrops) -> Judge | Learnt:
        held = [task.calibration for task in self.stream.tasks[: number + 1]]
        calibration = joined(held)
        if not reals(calibration.families).any():
            return learnt
        return calibrated(learnt, self.setup, train, calibration, self.setup.rejection)

    def _measured(
        self, judge: Judge | Learnt, number: int
    ) -> tuple[list[float], Figures, dict[str, RejectionScores]]:
        tasks = self.stream.tasks[: number + 1]
        self.progress(f"{tasks[-1].name}: evaluation", 0, 0)
        if isinstance(judge, Learnt):
            raise ValueError("a stream without calibration items cannot be judged: hold some back")
        on_tests = [judge.judged(task.test) for task in tasks]
        column = [accuracy(one) for one in on_tests]
        figures = figures_of(on_tests, judge)
        scores: dict[str, RejectionScores] = {}
        outliers = [one.at(number, len(self.stream.tasks)) for one in self.stream.outliers]
        unknown = [part for part in outliers if len(part)]
        if unknown:
            found = rejection_scores(on_tests, judge.judged(joined(unknown)), self.setup.rejection[0])
            scores[f"step {number + 1}"] = found
            threshold = judge.gate.unknown_threshold if self.setup.rejection[0] == "fused" else None
            figures = figures.model_copy(update={"unseen": measure_unseen(found, threshold)})
        return column, figures, scores


def accuracy(judged: Judged) -> float:
    """Return the share told rightly real or fake by the highest logit (CDDB section 4), in points."""
    return 100 * float((judged.fake == ~reals(judged.families)).mean())


def figures_of(on_tests: Sequence[Judged], judge: Judge) -> Figures:
    """Return the figures of one network on the tests of the tasks that it knows."""
    options = judge.setup.options
    names = schemes.columns(judge.learnt.classes, options)
    truly_fake = [~reals(one.families) for one in on_tests]
    labels = np.concatenate([one.labels for one in on_tests])
    real = ~np.concatenate(truly_fake)
    recognised, both_kinds = None, all(0 < one.sum() < len(one) for one in truly_fake)
    if options.scheme != "bc":
        called = [np.array(names)[one.column] for one in on_tests]
        recognised = aa_m(called, [one.families for one in on_tests])
    fakes = [one.fake_probability[fake] for one, fake in zip(on_tests, truly_fake, strict=True)]
    others = [one.fake_probability[~fake] for one, fake in zip(on_tests, truly_fake, strict=True)]
    return Figures(
        aa=float(np.mean([accuracy(one) for one in on_tests])),
        aa_m=recognised,
        map=mean_ap(fakes, others) if both_kinds else None,
        real_fake_auc=float(np.mean([auroc(*pair) for pair in zip(fakes, others, strict=True)]))
        if both_kinds
        else None,
        closed_set_accuracy=recognised,
        reals_unknown=float((labels[real] == "unknown").mean()) if real.any() else None,
        reals_fake=float((labels[real] == "fake").mean()) if real.any() else None,
    )


def rejection_scores(known: Sequence[Judged], unseen: Judged, name: str) -> RejectionScores:
    """Return the scores of known test items and of items never trained on, whose reals are the control."""
    real = reals(unseen.families)
    return RejectionScores(
        known=np.concatenate([_score(one, name) for one in known]),
        unknown=_score(unseen, name)[~real],
        control=_score(unseen, name)[real],
        known_energy=np.concatenate([one.energy for one in known]),
        unknown_energy=unseen.energy[~real],
    )


def _score(judged: Judged, name: str) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return judged.unknown_score if name == "fused" else judged.rejection[name].astype(np.float32)


def mean_unseen(parts: Sequence[Unseen]) -> Unseen:
    """Return the mean of each figure over the parts that have it."""
    found = {}
    for name in Unseen.model_fields:
        values = [getattr(part, name) for part in parts if getattr(part, name) is not None]
        found[name] = float(np.mean(values)) if values else None
    return Unseen(**found)


def save_learnt(path: Path, learnt: Learnt) -> None:
    """Write a network and what its learner keeps, aside and then renamed."""
    state = {f"network.{name}": value for name, value in learnt.network.state_dict().items()}
    state |= {f"kept.{name}": value for name, value in learnt.kept.items()}
    aside = path.with_suffix(".writing")
    save_file({name: value.detach().cpu().contiguous() for name, value in state.items()}, aside)
    aside.replace(path)


def load_learnt(path: Path, classes: tuple[str, ...], setup: Setup) -> Learnt:
    """Read back what `save_learnt` wrote, on the setup's device."""
    state = load_file(path)
    parts: dict[str, dict[str, torch.Tensor]] = {"network": {}, "kept": {}}
    for name, value in state.items():
        kind, _, rest = name.partition(".")
        parts[kind][rest] = value
    network = Network(setup.architecture, len(schemes.columns(classes, setup.options)))
    network.load_state_dict(parts["network"])
    kept = {name: value.to(setup.torch_device) for name, value in parts["kept"].items()}
    return Learnt(network.to(setup.torch_device).eval(), classes, kept)

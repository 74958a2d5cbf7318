"""Rejection of a family that nothing was trained on: each family of a stream left out once."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel
from sklearn.neighbors import NearestNeighbors

from detector.model.scores import energy
from detector.release.artifact import Reference
from detector.release.manifest import NO_BACKBONE
from ingest.durable import write_durably
from updater.benchmark.continual.continual import learn_once, learn_step, rejection_scores
from updater.benchmark.continual.scoring import (
    Draws,
    JudgedItems,
    calibrate_model,
    network_output,
    rejection_draws,
    within_draws,
)
from updater.benchmark.continual.setup import Setup, without_head
from updater.benchmark.data.tasks import PARTS, Stream, Task
from updater.benchmark.report.results import (
    Number,
    RejectionScores,
    Resamples,
    Unseen,
    WithinSource,
    measure_unseen,
    measure_within,
)
from updater.benchmark.report.run_folder import load_scores, save_scores
from updater.candidate.calibrate import reals
from updater.data.training_data import LabelledCrops
from updater.measures import auroc
from updater.progress import Progress, with_prefix
from updater.training.processes import is_first
from updater.training.step import Options, TrainedModel

PLAIN_BACKBONE = "lcnet_050"
"""of the plain network whose energy is shown beside the gate, where the setup has no backbone"""


class LeftOut(BaseModel, frozen=True, extra="forbid", ser_json_inf_nan="constants"):
    """One family left out: the figures of rejection.

    The unknowns are all forgeries of the family, those for training too: nothing has seen them. The control
    is its reals: all of them, or those for testing where the others were trained on (source_known).
    """

    family: str
    # By score: against all that is known, and against the reals of a source that is known.
    unseen: dict[str, Unseen]
    within: dict[str, WithinSource]
    # The share of the unknowns that the release would call fake or unknown, and how many there are.
    power: float
    n: int
    # None where the source is not known, or there are no forensic features.
    lone_source_auc: Number
    # Of the first score.
    drawn: Draws


def leave_out(
    stream: Stream,
    setup: Setup,
    seed: int,
    family: str,
    kinds: frozenset[str],
    images: Resamples,
    *,
    source_known: bool,
    plain: bool,
    folder: Path,
    progress: Progress,
) -> tuple[LeftOut, RejectionScores]:
    """Train on every other task; return the family's figures, and the scores of the first score.

    kinds: of the pseudo-forgeries that are left out with it. plain: whether the energy is a plain network's,
    trained for this alone on pixels and classes; else it is not measured. What the folder holds of the same
    is not measured again.
    """
    done = folder / f"without-{family}{'-source-known' if source_known else ''}"
    if (done / "figures.json").is_file():
        return LeftOut.model_validate_json((done / "figures.json").read_bytes()), load_scores(done)[family]
    tasks, unseen = without_family(stream, family, source_known)
    part = f"the forgeries of {family}" if source_known else family
    say = with_prefix(progress, f"without {part}")
    train, held = (LabelledCrops.join([getattr(task, of) for task in tasks]) for of in PARTS[:2])
    learnt = train_without(tasks, setup, seed, kinds, folder / "left-out.safetensors", say)
    judge = calibrate_model(learnt, setup, train, held, without=kinds, seed=seed)
    known, judged = JudgedItems.join([judge.judge(task.test) for task in tasks]), judge.judge(unseen)
    real, first = reals(judged.families), setup.rejection[0]
    fakes, own = judged.take(~real), judged.take(real)
    energies = [np.zeros(0, np.float32)] * 2
    if plain:
        out = unseen.take(np.flatnonzero(~real))
        energies = _plain_energies(tasks, out, setup, seed, kinds, folder, say)
    plainly = {"known_energy": energies[0], "unknown_energy": energies[1]}
    scores = {name: replace(rejection_scores(known, judged, name), **plainly) for name in setup.rejection}
    setting, lone = "source_known" if source_known else "unseen", None
    drawn = rejection_draws(setting, known, fakes, first, images)
    if source_known:
        drawn |= within_draws(fakes, own, first, images)
        if (reference := judge.gated.reference) is not None:
            lone = auroc(*(lone_source_scores(reference, family, of.features) for of in (fakes, known)))
    thresholds = {"fused": judge.gated.gate.unknown_threshold}
    left = LeftOut(
        family=family,
        unseen={name: measure_unseen(of, thresholds.get(name)) for name, of in scores.items()},
        within={name: measure_within(of) for name, of in scores.items()} if source_known else {},
        power=float((fakes.labels != "real").mean()),
        n=len(fakes.labels),
        lone_source_auc=lone,
        drawn=drawn,
    )
    if is_first():
        done.mkdir(exist_ok=True)
        save_scores(done, {family: scores[first]})
        write_durably(done / "figures.json", left.model_dump_json().encode())
    return left, scores[first]


def without_family(stream: Stream, family: str, source_known: bool) -> tuple[list[Task], LabelledCrops]:
    """Return the tasks to train on, and everything of the family that they leave out.

    source_known: the family's reals are trained on, as a last task, and what is left out are its forgeries,
    beside the reals for testing.
    """
    (left,) = (task for task in stream.tasks if task.name == family)
    tasks = [task for task in stream.tasks if task is not left]
    parts = left.train, left.calibration, left.test
    if not source_known:
        return tasks, LabelledCrops.join(parts)
    own = [part.take(np.flatnonzero(reals(part.families))) for part in parts]
    out = [part.take(np.flatnonzero(~reals(part.families))) for part in parts]
    return [*tasks, Task(family, *own)], LabelledCrops.join([*out, own[2]])


def train_without(
    tasks: Sequence[Task],
    setup: Setup,
    seed: int,
    kinds: frozenset[str],
    checkpoint: Path,
    progress: Progress,
    path: Path | None = None,
) -> TrainedModel:
    """Train a first network on these tasks. kinds: of the pseudo-forgeries that are left out.

    path: of its file, where it is kept.
    """
    train = LabelledCrops.join([task.train for task in tasks])
    classes = tuple(name for task in tasks for name in task.classes)
    if setup.start_from is not None and setup.options.scheme != "bc":
        setup = replace(setup, start_from=without_head(setup.start_from))
    learn = learn_step if path is None else partial(learn_once, path)
    return learn(
        setup, train, classes, len(train), without=kinds, seed=seed, checkpoint=checkpoint, progress=progress
    )


def _plain_energies(
    tasks: list[Task],
    unseen: LabelledCrops,
    setup: Setup,
    seed: int,
    kinds: frozenset[str],
    folder: Path,
    progress: Progress,
) -> list[NDArray[np.float32]]:
    """Return the energies of the tests and of the unseen items by a network of pixels and classes alone."""
    name = setup.architecture.backbone
    backbone = PLAIN_BACKBONE if name == NO_BACKBONE else name
    plain = setup.architecture.model_copy(update={"backbone": backbone, "forensic": False, "frozen": False})
    options = Options(exposure="none")
    bare = replace(setup, learner="joint", architecture=plain, start_from=None, options=options)
    say = with_prefix(progress, "plain network")
    learnt = train_without(tasks, bare, seed, kinds, folder / "plain.safetensors", say)
    tests = LabelledCrops.join([task.test for task in tasks])
    logits = [network_output(learnt, items, setup.torch_device).logits for items in (tests, unseen)]
    return [np.asarray(energy(of).numpy(), np.float32) for of in logits]


def lone_source_scores(
    reference: Reference, source: str, features: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Return how much nearer each item is to the lone source than to any other, float64 [n].

    This score never looks at fakeness. Where the reals of a source are known and its forgeries are left out,
    every other source has both: whatever lies nearest to the lone one is likely one of the forgeries. A score
    of rejection has to beat it.

    s(x) = (distance to the nearest known item of another source) - (to the nearest of the lone one),
    Euclidean in the whitened forensic features. features: raw, float32 [n, F]. A known item's source is what
    its class says before the slash. Raises ValueError where no item of the reference is of the source, or all
    are.
    """
    lone = np.array([name.partition("/")[0] == source for name in reference.families], bool)
    if lone.all() or not lone.any():
        raise ValueError(
            f"{lone.sum()} of {len(lone)} known items are of {source}: some must be, and not all"
        )
    rows = reference.whiten(features)
    nearest = (NearestNeighbors(n_neighbors=1).fit(reference.features[part]) for part in (lone, ~lone))
    own, other = (of.kneighbors(rows)[0][:, 0] for of in nearest)
    return np.asarray(other - own, np.float64)

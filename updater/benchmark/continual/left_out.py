"""Rejection of a family that nothing was trained on: each family of a stream left out once."""

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save
from sklearn.neighbors import NearestNeighbors

from detector.release.artifact import Reference
from detector.release.manifest import NO_BACKBONE
from ingest.durable import write_durably
from updater.benchmark.continual.continual import rejection_scores
from updater.benchmark.continual.scoring import CalibratedModel, JudgedItems, calibrate_model, energy_of
from updater.benchmark.continual.setup import Setup
from updater.benchmark.data.tasks import Stream, Task, is_real
from updater.benchmark.learners.methods import LEARNERS
from updater.benchmark.report.results import (
    RejectionScores,
    Unseen,
    WithinSource,
    measure_unseen,
    measure_within,
)
from updater.candidate.calibrate import reals
from updater.data.training_data import LabelledCrops
from updater.measures import auroc
from updater.progress import Progress, with_prefix
from updater.training.processes import is_first
from updater.training.step import Options, Step, TrainedModel

_FACTS = ("family", "reals_unknown", "reals_fake", "lone_source_auc")
PLAIN_BACKBONE = "lcnet_050"
"""of the plain network whose energy is shown beside the gate, where the setup has no backbone"""


@dataclass(frozen=True)
class LeftOut:
    """One family left out: the figures of rejection, and the scores that they are of.

    The unknowns are all forgeries of the family, those for training too: nothing has seen them. The control
    is its reals: all of them, or those for testing where the others were trained on (source_known).
    """

    family: str
    unseen: Unseen
    scores: RejectionScores
    reals_unknown: float
    reals_fake: float
    not_real: NDArray[np.bool_]
    """of each unknown, whether the release would say fake or unknown of it"""
    lone_source_auc: float | None
    """None where the source is not known, or there are no forensic features"""

    @property
    def within(self) -> WithinSource:
        """The unknowns against their source's held-back reals; of a source that is known."""
        return measure_within(self.scores)


def leave_out(
    stream: Stream,
    setup: Setup,
    seed: int,
    family: str,
    kinds: frozenset[str],
    *,
    source_known: bool,
    plain: bool,
    folder: Path,
    progress: Progress,
) -> dict[str, LeftOut]:
    """Train on every other task, and measure each of the setup's scores on the family; by score.

    kinds: of the pseudo-forgeries that are left out with it. plain: whether the energy is a plain network's,
    trained for this alone on pixels and classes; else it is not measured. What the folder holds of the same
    is not measured again.
    """
    done = folder / f"without-{family}{'-source-known' if source_known else ''}"
    if (kept := _load(done)) is not None:
        return kept
    tasks, unseen = without_families(stream, [family], source_known)

    part = f"the forgeries of {family}" if source_known else family
    say = with_prefix(progress, f"without {part}")
    learnt = train_without(tasks, setup, seed, kinds, folder / "left-out.safetensors", say)
    train = LabelledCrops.join([task.train for task in tasks])
    held = LabelledCrops.join([task.calibration for task in tasks])
    judge = calibrate_model(learnt, setup, train, held, without=kinds, seed=seed)
    known, of_family = [judge.judge(task.test) for task in tasks], judge.judge(unseen)
    own = [part for part in known if family in {name.partition("/")[0] for name in part.families}]
    energies = _plain_energies(tasks, unseen, setup, seed, kinds, folder, say) if plain else None
    real = reals(of_family.families)
    not_real, shares = of_family.labels[~real] != "real", _shares_of_reals(known)
    lone = _lone_source_auc(judge, family, known, of_family) if source_known else None
    results = {}
    for name in setup.rejection:
        scores = rejection_scores(known, of_family, name)
        if source_known:
            of_own = rejection_scores(known, own[0], name)
            scores = replace(scores, control=of_own.control, control_own_energy=of_own.control_own_energy)
        threshold = judge.gated.gate.unknown_threshold if name == "fused" else None
        nothing = np.zeros(0, np.float32)
        known_energy, energy = (nothing, nothing) if energies is None else (energies[0], energies[1][~real])
        scores = replace(scores, known_energy=known_energy, unknown_energy=energy)
        unseen_figures = measure_unseen(scores, threshold)
        results[name] = LeftOut(family, unseen_figures, scores, *shares, not_real, lone)
    if is_first():
        _save(done, results)
    return results


def without_families(
    stream: Stream, families: Collection[str], source_known: bool
) -> tuple[list[Task], LabelledCrops]:
    """Return the tasks to train on, and everything of the families that they leave out.

    source_known: the families' reals are trained on, as further tasks, and what is left out are forgeries.
    """
    left = [task for task in stream.tasks if task.name in families]
    tasks = [task for task in stream.tasks if task.name not in families]
    everything = LabelledCrops.join(
        [part for task in left for part in (task.train, task.calibration, task.test)]
    )
    if not source_known:
        return tasks, everything
    for task in left:
        tasks.append(
            Task(task.name, *(_only_reals(part) for part in (task.train, task.calibration, task.test)))
        )
    fakes = (i for i, name in enumerate(everything.families) if not is_real(name))
    return tasks, everything.take(fakes)


def _only_reals(items: LabelledCrops) -> LabelledCrops:
    return items.take(i for i, name in enumerate(items.families) if is_real(name))


def train_without(
    tasks: Sequence[Task],
    setup: Setup,
    seed: int,
    kinds: frozenset[str],
    checkpoint: Path,
    progress: Progress,
) -> TrainedModel:
    """Train a first network on these tasks. kinds: of the pseudo-forgeries that are left out."""
    train = LabelledCrops.join([task.train for task in tasks])
    step = Step(
        train,
        tuple(name for task in tasks for name in task.classes),
        setup.architecture,
        options=setup.options,
        recipe=setup.recipe(len(train), first=True),
        without=kinds,
        seed=seed,
        device=setup.torch_device,
        checkpoint=checkpoint,
        start_from=setup.start_from.without_head() if setup.start_from else None,
        progress=progress,
    )
    return LEARNERS[setup.learner](step)


def _plain_energies(
    tasks: list[Task],
    unseen: LabelledCrops,
    setup: Setup,
    seed: int,
    kinds: frozenset[str],
    folder: Path,
    progress: Progress,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return the energies of the tests and of the unseen items by a network of pixels and classes alone."""
    name = setup.architecture.backbone
    backbone = PLAIN_BACKBONE if name == NO_BACKBONE else name
    plain = setup.architecture.model_copy(update={"backbone": backbone, "forensic": False, "frozen": False})
    bare = replace(
        setup, learner="joint", options=Options(exposure="none"), architecture=plain, start_from=None
    )
    say = with_prefix(progress, "plain network")
    learnt = train_without(tasks, bare, seed, kinds, folder / "plain.safetensors", say)
    of_tests = [energy_of(learnt, task.test, setup.torch_device) for task in tasks]
    return np.concatenate(of_tests), energy_of(learnt, unseen, setup.torch_device)


def _lone_source_auc(
    judge: CalibratedModel, family: str, known: list[JudgedItems], unseen: JudgedItems
) -> float | None:
    reference = judge.gated.reference
    if reference is None:
        return None
    features = np.concatenate([part.features for part in known])
    near, far = (lone_source_scores(reference, family, rows) for rows in (unseen.features, features))
    return auroc(near, far)


def _shares_of_reals(known: list[JudgedItems]) -> tuple[float, float]:
    labels = np.concatenate([part.labels for part in known])
    real = np.concatenate([reals(part.families) for part in known])
    return float((labels[real] == "unknown").mean()), float((labels[real] == "fake").mean())


def _save(path: Path, results: Mapping[str, LeftOut]) -> None:
    arrays, facts = {}, {}
    for name, of_score in results.items():
        for key, values in [*vars(of_score.scores).items(), ("not_real", of_score.not_real)]:
            arrays[f"{name}/{key}"] = np.ascontiguousarray(values, np.float32)
        facts[name] = {key: getattr(of_score, key) for key in _FACTS} | {
            "unseen": of_score.unseen.model_dump()
        }
    write_durably(path.with_suffix(".safetensors"), save(arrays))
    write_durably(path.with_suffix(".json"), json.dumps(facts).encode())


def _load(path: Path) -> dict[str, LeftOut] | None:
    if not path.with_suffix(".json").is_file():
        return None
    arrays, results = load_file(path.with_suffix(".safetensors")), {}
    for name, facts in json.loads(path.with_suffix(".json").read_bytes()).items():
        own = {key.rpartition("/")[2]: v for key, v in arrays.items() if key.rpartition("/")[0] == name}
        not_real, unseen = own.pop("not_real").astype(bool), Unseen.model_validate(facts.pop("unseen"))
        results[name] = LeftOut(**facts, unseen=unseen, scores=RejectionScores(**own), not_real=not_real)
    return results


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
    own, other = (_distances(reference.features[part], rows) for part in (lone, ~lone))
    return other - own


def _distances(known: NDArray[np.float32], rows: NDArray[np.float32]) -> NDArray[np.float64]:
    nearest = NearestNeighbors(n_neighbors=1).fit(known).kneighbors(rows)[0][:, 0]
    return np.asarray(nearest, np.float64)

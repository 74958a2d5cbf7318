"""A whole benchmark: for each seed the stream task by task, joint training, and each family left out."""

import importlib.metadata
import json
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from memory.crop_store import write_durably
from updater.benchmark.continual import Continual, mean_unseen
from updater.benchmark.items import joined, with_features
from updater.benchmark.left_out import LeftOut, leave_out
from updater.benchmark.results import Figures, RejectionScores, Run, Unseen
from updater.benchmark.run_folder import RUN_FILE, load_run, load_scores, save_run
from updater.benchmark.scoring import rightly_told
from updater.benchmark.setup import Progress, Setup
from updater.data.tasks import Stream
from updater.learners.methods import LEARNERS
from updater.learners.step import Step
from updater.measures import af, af_paper

_PACKAGES = ("numpy", "torch", "timm", "scikit-learn", "pytorch-ood", "faiss-cpu")

Kinds = Mapping[str, frozenset[str]]
"""the kinds of pseudo-forgeries that each family consists of, by task; a task that is not there has none"""


def run_benchmark(
    name: str,
    stream: Stream,
    setup: Setup,
    seeds: Sequence[int],
    folder: Path,
    *,
    command: tuple[str, ...],
    kinds: Kinds,
    leave_families_out: bool,
    progress: Progress,
) -> Iterator[tuple[Run, dict[str, RejectionScores]]]:
    """Run the seeds that the folder does not hold yet; yield every seed's run and scores.

    leave_families_out: measure rejection by leaving each task out in turn; else by the stream's outliers.
    The energy of a plain network beside it is measured for the first seed alone: it takes longest.
    """
    featured: Stream | None = None
    for seed in seeds:
        place = folder / f"seed-{seed}"
        if (place / RUN_FILE).is_file():
            run = load_run(place)
            if run.stream_digest == stream.digest and run.options == setup.described():
                yield run, load_scores(place)
                continue
        featured = featured or with_features(stream, setup.torch_device, progress)
        plain = seed == seeds[0]
        yield _one(name, featured, setup, seed, place, command, kinds, leave_families_out, plain, progress)


def _one(
    name: str,
    stream: Stream,
    setup: Setup,
    seed: int,
    place: Path,
    command: tuple[str, ...],
    kinds: Kinds,
    leave_families_out: bool,
    plain: bool,
    progress: Progress,
) -> tuple[Run, dict[str, RejectionScores]]:
    parts = place / "parts"

    def said(stage: str, *at: int) -> None:
        progress(f"seed {seed}: {stage}", *at)

    columns, steps, scores = Continual(stream, setup, seed, parts, said).run()
    matrix = [[c[i] if i < len(c) else float("nan") for c in columns] for i in range(len(columns))]
    joint_aa, joint_s = _joint(stream, setup, seed, parts, said)
    rejected = [step.figures.unseen for step in steps if step.figures.unseen.auc is not None]
    unseen, source_known = mean_unseen(rejected), Unseen()
    by_score: dict[str, Unseen] = {}
    by_score_known: dict[str, Unseen] = {}
    if leave_families_out:
        out = _left_out(stream, setup, seed, parts, kinds, False, plain, said)
        known = _left_out(stream, setup, seed, parts, kinds, True, False, said)
        first = setup.rejection[0]
        by_score, by_score_known = _by_score(setup, out), _by_score(setup, known)
        unseen, source_known = by_score[first], by_score_known[first]
        scores |= {f"without {one[first].family}": one[first].scores for one in out}
    updates = [step.seconds["training"] for step in steps[1:]]
    last = steps[-1].figures
    figures = last.model_copy(
        update={
            "joint_aa": joint_aa,
            "af": af(matrix),
            "af_paper": af_paper(matrix),
            "unseen": unseen,
            "source_known": source_known,
            "update_cost": float(np.mean(updates)) / joint_s if updates else None,
        }
    )
    run = Run(
        benchmark=name,
        stream=stream.name,
        stream_digest=stream.digest,
        command=command,
        options=setup.described(),
        versions={"python": platform.python_version()}
        | {package: importlib.metadata.version(package) for package in _PACKAGES},
        device=setup.device,
        seed=seed,
        tasks=tuple(task.name for task in stream.tasks),
        matrix=tuple(tuple(row) for row in matrix),
        steps=tuple(steps),
        figures=Figures.model_validate(figures.model_dump()),
        rejection=by_score,
        rejection_source_known=by_score_known,
    )
    save_run(place, run, scores)
    return run, scores


def _by_score(setup: Setup, out: Sequence[Mapping[str, LeftOut]]) -> dict[str, Unseen]:
    return {name: mean_unseen([one[name].unseen for one in out]) for name in setup.rejection}


def _joint(stream: Stream, setup: Setup, seed: int, parts: Path, progress: Progress) -> tuple[float, float]:
    """Return the AA of training on all tasks at once, in points, and the seconds that it took."""
    done = parts / "joint.json"
    if not done.is_file():
        train = joined([task.train for task in stream.tasks])
        step = Step(
            train,
            tuple(name for task in stream.tasks for name in task.classes),
            setup.architecture,
            options=setup.options,
            recipe=setup.recipe(len(train), first=True),
            seed=seed,
            device=setup.torch_device,
            progress=lambda stage, *at: progress(f"joint: {stage}", *at),
        )
        began = time.perf_counter()
        learnt = LEARNERS["joint"](step)
        seconds = time.perf_counter() - began
        told = [rightly_told(learnt, setup, task.test) for task in stream.tasks]
        write_durably(done, json.dumps([100 * float(np.mean(told)), seconds]).encode())
    joint_aa, seconds = json.loads(done.read_bytes())
    return float(joint_aa), float(seconds)


def _left_out(
    stream: Stream,
    setup: Setup,
    seed: int,
    parts: Path,
    kinds: Kinds,
    source_known: bool,
    plain: bool,
    progress: Progress,
) -> list[dict[str, LeftOut]]:
    return [
        leave_out(
            stream,
            setup,
            seed,
            task.name,
            kinds.get(task.name, frozenset()),
            source_known=source_known,
            plain=plain,
            folder=parts,
            progress=progress,
        )
        for task in stream.tasks
    ]

"""A whole benchmark: for each seed the stream task by task, joint training, and each family left out."""

import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from pydantic import JsonValue

from detector.release.architecture import FEATURE_VERSION
from ingest.durable import write_durably
from updater.benchmark.continual.continual import Continual, mean_of, means_over_sets
from updater.benchmark.continual.left_out import LeftOut, leave_out
from updater.benchmark.continual.resampled import resampled
from updater.benchmark.continual.scoring import output_of, rightly_told
from updater.benchmark.continual.setup import Setup
from updater.benchmark.continual.streams import with_features
from updater.benchmark.data.tasks import Stream
from updater.benchmark.learners.methods import LEARNERS
from updater.benchmark.report.bootstrap import interval
from updater.benchmark.report.clock import seconds_in, timed
from updater.benchmark.report.results import Figures, Power, RejectionScores, Run, Unseen, WithinSource
from updater.benchmark.report.run_folder import RUN_FILE, ResultsError, load_run, load_scores, save_run
from updater.data.training_data import LabelledCrops
from updater.measures import af, af_paper
from updater.progress import Progress
from updater.training.picture_vote import vote_beside
from updater.training.processes import is_first
from updater.training.step import Step

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
    frozen: Path | None = None,
) -> Iterator[tuple[Run, dict[str, RejectionScores]]]:
    """Run the seeds that the folder does not hold yet; yield every seed's run and scores.

    leave_families_out: measure rejection by leaving each task out in turn; else by the stream's outliers.
    frozen: the folder of what a frozen model has made of pictures in any run.
    The energy of a plain network beside it is measured for the first seed alone: it takes longest. Of several
    processes that train together the first writes. Raises ResultsError where the folder holds a run of other
    data, crop plan, features or options, ValueError for a stream or an option that does not fit, and OSError.
    """
    if leave_families_out and len(stream.tasks) < 2:
        raise ValueError("one task cannot be left out of one: name more tasks, or leave none out")
    for seed in seeds:
        _check(folder / f"seed-{seed}", stream, setup)
    featured: Stream | None = None
    for seed in seeds:
        place = folder / f"seed-{seed}"
        if (place / RUN_FILE).is_file():
            run = load_run(place)
            if run.figures.unseen.auc is not None or not leave_families_out:
                yield run, load_scores(place)
                continue
        featured = featured or with_features(stream, setup, progress, frozen)
        plain = seed == seeds[0]
        yield _one(name, featured, setup, seed, place, command, kinds, leave_families_out, plain, progress)


def _check(place: Path, stream: Stream, setup: Setup) -> None:
    """Raise ResultsError where a seed's folder has a run of other data, crops or options: else it is lost."""
    if not (place / RUN_FILE).is_file():
        return
    run = load_run(place)
    # Both as JSON has them, where a tuple is a list.
    other = list(_differing(run.options, json.loads(json.dumps(_described(stream, setup)))))
    if run.stream_digest != stream.digest:
        other.insert(0, f"other data ({run.stream})")
    if other:
        raise ResultsError(f"{place} holds a run of {', '.join(other)}: name another folder with --out")


def _described(stream: Stream, setup: Setup) -> dict[str, JsonValue]:
    """Return all that a run follows from, its media and seed aside: options, crop plan, feature version."""
    crops = stream.plan.model_dump(mode="json")
    return setup.described() | {"crops": crops, "feature_version": FEATURE_VERSION}


def _differing(
    there: Mapping[str, JsonValue], wanted: Mapping[str, JsonValue], above: str = ""
) -> Iterator[str]:
    """Tell each value that is there and not wanted, by its whole name."""
    for name in dict.fromkeys([*wanted, *there]):
        had, wants, full = there.get(name), wanted.get(name), above + name
        if isinstance(had, dict) and isinstance(wants, dict):
            yield from _differing(had, wants, f"{full}.")
        elif had != wants:
            yield f"{full} {had}" if name in there else f"no {full} on record"


def default_name(benchmark: str, stream: Stream, setup: Setup) -> str:
    """Return a name for a folder of runs: what tables compare, and a digest of all that they follow from."""
    words = [benchmark, setup.learner, setup.options.scheme, str(setup.memory), setup.architecture.backbone]
    return "-".join([*words, _digest(stream.digest, _described(stream, setup))[:8]])


def _parts(place: Path, stream: Stream, setup: Setup, seed: int) -> Path:
    """Return the folder of what a run has done so far: another one for other data or options."""
    return place / "parts" / _digest(stream.digest, _described(stream, setup), seed)[:16]


def _digest(*facts: object) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=list).encode()).hexdigest()


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
    parts = _parts(place, stream, setup, seed)
    parts.mkdir(parents=True, exist_ok=True)

    def said(stage: str, *at: int) -> None:
        progress(f"seed {seed}: {stage}", *at)

    continual = Continual(stream, setup, seed, parts, said)
    columns, steps, scores = continual.run()
    first = setup.rejection[0]
    matrix = [[c[i] if i < len(c) else float("nan") for c in columns] for i in range(len(columns))]
    joint_aa, joint_s = _joint(stream, setup, seed, parts, said)
    by_score = {name: mean_of(Unseen, found) for name, found in continual.unseen.items()}
    by_set = {
        name: {outliers: mean_of(Unseen, found) for outliers, found in sets.items()}
        for name, sets in continual.unseen_sets.items()
    }
    by_score_known: dict[str, Unseen] = {}
    by_score_within: dict[str, WithinSource] = {}
    left_out: list[list[LeftOut]] = [[], []]
    if leave_families_out:
        out = _left_out(stream, setup, seed, parts, kinds, False, plain, said)
        known = _left_out(stream, setup, seed, parts, kinds, True, False, said)
        by_score, by_score_known = _by_score(setup, out), _by_score(setup, known)
        scores |= {f"without {one[first].family}": one[first].scores for one in out}
        left_out = [[one[first] for one in each] for each in (out, known)]
        by_score_within = {
            name: mean_of(WithinSource, [one[name].within for one in known]) for name in setup.rejection
        }
    drawn = resampled(stream, continual.on_tests, scores, *left_out)
    updates = [step.seconds["training"] for step in steps[1:]]
    last = steps[-1].figures
    figures = last.model_copy(
        update={
            "joint_aa": joint_aa,
            "af": af(matrix),
            "af_paper": af_paper(matrix),
            "unseen": by_score.get(first, Unseen()),
            "source_known": by_score_known.get(first, Unseen()),
            "within_source": by_score_within.get(first, WithinSource()),
            **_of_source_known(left_out[1], drawn.get("power.share", ())),
            **means_over_sets(by_set.get(first, {}), stream.outliers),
            "update_cost": float(np.mean(updates)) / joint_s if updates and joint_s else None,
        }
    )
    run = Run(
        benchmark=name,
        stream=stream.name,
        stream_digest=stream.digest,
        command=command,
        options=_described(stream, setup),
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
        rejection_within_source=by_score_within,
        resampled=drawn,
        outlier_sets=by_set,
    )
    if is_first():
        save_run(place, run, scores)
    return run, scores


def _by_score(setup: Setup, out: Sequence[Mapping[str, LeftOut]]) -> dict[str, Unseen]:
    return {name: mean_of(Unseen, [one[name].unseen for one in out]) for name in setup.rejection}


def _of_source_known(left_out: Sequence[LeftOut], powers: Sequence[float]) -> dict[str, object]:
    """Return what only a known source can show: the power, and the score of the lone source."""
    if not left_out:
        return {}
    lone = [one.lone_source_auc for one in left_out if one.lone_source_auc is not None]
    low, high = interval(powers) or (None, None)
    share = float(np.mean([one.not_real.mean() for one in left_out]))
    return {
        "lone_source_auc": float(np.mean(lone)) if lone else None,
        "power": Power(share=share, low=low, high=high),
    }


def _joint(stream: Stream, setup: Setup, seed: int, parts: Path, progress: Progress) -> tuple[float, float]:
    """Return the AA of training on all tasks at once, in points, and the seconds that it took."""
    done, clock = parts / "joint-aa.json", parts / "joint.json"
    if done.is_file():
        joint_aa = float(json.loads(done.read_bytes()))
    else:
        train = LabelledCrops.join([task.train for task in stream.tasks])
        step = Step(
            train,
            tuple(name for task in stream.tasks for name in task.classes),
            setup.architecture,
            options=setup.options,
            recipe=setup.recipe(len(train), first=True),
            seed=seed,
            device=setup.torch_device,
            checkpoint=parts / "joint.safetensors",
            start_from=setup.start_from.without_head() if setup.start_from else None,
            progress=lambda stage, *at: progress(f"joint: {stage}", *at),
        )
        with timed(clock):
            learnt = LEARNERS["joint"](step)
        vote = None
        if setup.architecture.picture is not None:
            held = LabelledCrops.join([task.calibration for task in stream.tasks])
            logits = output_of(learnt, held, setup.torch_device).logits
            vote = vote_beside(logits, train, held, learnt.classes, setup.options)
        told = [rightly_told(learnt, setup, task.test, vote) for task in stream.tasks]
        joint_aa = 100 * float(np.mean(told))
        if is_first():
            write_durably(done, json.dumps(joint_aa).encode())
    return joint_aa, seconds_in(clock)


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

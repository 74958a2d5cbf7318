"""A stream as a benchmark: learnt task by task, beside joint training, and with each family left out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean

import numpy as np

from detector.release.manifest import FEATURE_VERSION
from updater.benchmark.continual.continual import Continual, mean_of, means_over_sets
from updater.benchmark.continual.left_out import LeftOut, leave_out, train_without
from updater.benchmark.continual.scoring import Draws, accuracy_draws, images_of, mean_draws, rightly_told
from updater.benchmark.continual.setup import Setup
from updater.benchmark.continual.streams import with_features
from updater.benchmark.data.tasks import Stream
from updater.benchmark.report.harness import Benchmark, Seed
from updater.benchmark.report.outcome import Outcome, ReportPicture, Value, Values
from updater.benchmark.report.plots import precision_recall
from updater.benchmark.report.results import (
    PowerShare,
    RejectionScores,
    Unseen,
    WithinSource,
    af,
    af_paper,
    interval,
)
from updater.benchmark.report.results import Result as StreamStep
from updater.benchmark.report.run_folder import save_scores, seconds_in
from updater.benchmark.report.table import SETS
from updater.candidate.calibrate import reals
from updater.progress import with_prefix
from updater.training.processes import is_first

Kinds = Mapping[str, frozenset[str]]
"""the kinds of pseudo-forgeries that each family consists of, by task; a task that is not there has none"""


def stream_benchmark(
    name: str,
    stream: Stream,
    setup: Setup,
    *,
    first_seed: int,
    kinds: Kinds,
    leave_families_out: bool,
    frozen: Path | None = None,
) -> Benchmark[Stream]:
    """Return a stream as it is run.

    leave_families_out: measure rejection by leaving each task out in turn; else by the stream's outliers.
    frozen: the folder of what a frozen model has made of pictures in any run.
    The energy of a plain network beside it is measured for the first seed alone: it takes longest. Raises
    ValueError for a stream or an option that does not fit.
    """
    if leave_families_out and len(stream.tasks) < 2:
        raise ValueError("one task cannot be left out of one: name more tasks, or leave none out")
    if setup.distortions and stream.folder is None:
        raise ValueError(f"--set distortions: {name} has no pictures in files: choose cddb or opencil")
    crops = stream.plan.model_dump(mode="json")

    def measure_seed(featured: Stream, seed: Seed) -> Outcome:
        images = images_of(featured)
        continual = Continual(featured, setup, seed.number, seed.parts, seed.progress, images)
        learnt = continual.run()
        joint = _joint(featured, setup, seed)
        first = seed.number == first_seed
        measure = partial(
            leave_out, featured, setup, seed.number, images=images, folder=seed.parts, progress=seed.progress
        )
        of_families = {
            task.name: kinds.get(task.name, frozenset()) for task in stream.tasks if leave_families_out
        }
        out = [
            [measure(*of, source_known=known, plain=first and not known) for of in of_families.items()]
            for known in (False, True)
        ]
        return _outcome(seed, continual, learnt, joint, *out)

    return Benchmark(
        name,
        stream.name,
        stream.digest,
        setup.as_record() | {"crops": crops, "feature_version": FEATURE_VERSION},
        (setup.learner, setup.options.scheme, str(setup.memory), setup.architecture.backbone),
        lambda progress: with_features(stream, setup, progress, frozen),
        measure_seed,
        is_done=lambda outcome: not leave_families_out or outcome.figures["unseen.auc"].value is not None,
        keeps_parts=True,
    )


Out = Sequence[tuple[LeftOut, RejectionScores]]


def _outcome(
    seed: Seed,
    continual: Continual,
    learnt: tuple[list[list[float]], list[StreamStep], dict[str, RejectionScores]],
    joint: tuple[float, float],
    out: Out,
    out_source_known: Out,
) -> Outcome:
    """Put all that was measured together, and write the scores of rejection into the seed's folder."""
    (columns, steps, scores), (joint_aa, joint_s), stream = learnt, joint, continual.stream
    matrix = [[c[i] if i < len(c) else float("nan") for c in columns] for i in range(len(columns))]
    lefts, known = ([left for left, _ in of] for of in (out, out_source_known))
    names, first = continual.setup.rejection, continual.setup.rejection[0]
    by_score = {name: mean_of(Unseen, rows) for name, rows in continual.unseen.items()}
    if out:
        by_score = {name: mean_of(Unseen, [left.unseen[name] for left in lefts]) for name in names}
    by_score_known = {name: mean_of(Unseen, [left.unseen[name] for left in known]) for name in names if out}
    within = {name: mean_of(WithinSource, [left.within[name] for left in known]) for name in names if out}
    by_set = {
        name: {outliers: mean_of(Unseen, rows) for outliers, rows in sets.items()}
        for name, sets in continual.unseen_sets.items()
    }
    assert continual.images is not None
    drawn = accuracy_draws(continual.on_tests, continual.images)
    drawn |= mean_draws([left.drawn for left in lefts] or continual.drawn)
    drawn |= mean_draws([left.drawn for left in known])
    updates = [step.seconds["training"] for step in steps[1:]]
    lone = [left.lone_source_auc for left in known if left.lone_source_auc is not None]
    low, high = interval(drawn.get("power.share", ())) or (None, None)
    share = float(np.mean([left.power for left in known])) if known else None
    figures = steps[-1].figures.model_copy(
        update={
            "joint_aa": joint_aa,
            "incremental_accuracy": fmean(step.figures.seen_accuracy or 0.0 for step in steps),
            "af": af(matrix),
            "af_paper": af_paper(matrix),
            "unseen": by_score.get(first, Unseen()),
            "source_known": by_score_known.get(first, Unseen()),
            "within_source": within.get(first, WithinSource()),
            "lone_source_auc": float(np.mean(lone)) if lone else None,
            "power": PowerShare(share=share, low=low, high=high),
            **means_over_sets(by_set.get(first, {}), stream.outliers),
            "update_cost": float(np.mean(updates)) / joint_s if updates and joint_s else None,
        }
    )
    families: dict[str, Values] = {left.family: {} for left in known} | continual.domains
    families |= {left.family: families[left.family] | _of_family(left, first) for left in known}
    if is_first():
        save_scores(seed.folder, scores | {f"without {left.family}": of for left, of in out})
    return Outcome(
        figures=_values(figures.flat().items(), drawn),
        families=families,
        by_distortion=continual.by_distortion,
        about={"by_distortion_trained_on": "all tasks"} if continual.by_distortion else {},
        tasks=tuple(task.name for task in stream.tasks),
        matrix=tuple(tuple(row) for row in matrix),
        steps=tuple(steps),
        rejection=_rows(by_score),
        rejection_source_known=_rows(by_score_known),
        rejection_within_source=_rows(within),
        outlier_sets={name: _rows(sets | _of_sets(sets, stream)) for name, sets in by_set.items()},
        notes=stream.notes,
        shown=_precision_recall(continual, seed),
    )


def _precision_recall(continual: Continual, seed: Seed) -> tuple[ReportPicture, ...]:
    """Return CDDB's figure 5; nothing where no task has both reals and fakes."""
    pairs = zip(continual.stream.tasks, continual.on_tests, strict=True)
    tests = {task.name: (~reals(test.families), test.fake_by_maxima) for task, test in pairs}
    tests = {name: (fake, score) for name, (fake, score) in tests.items() if 0 < fake.sum() < len(fake)}
    caption = f"Precision over recall of fakes, by domain, after the last step, seed {seed.number}."
    return (ReportPicture(svg=precision_recall(tests), caption=caption),) if tests else ()


def _of_sets(sets: Mapping[str, Unseen], stream: Stream) -> dict[str, Unseen]:
    """Return the means over a score's sets by the names of tables: of OpenCIL's main table, its rows."""
    means = means_over_sets(sets, stream.outliers)
    return {label: means[name] for name, label in SETS if name in means and len(sets) > 1}


def _of_family(out: LeftOut, score: str) -> Values:
    """Return how a family fares within its source, which is known; each figure is of all its forgeries."""
    within = ((f"within_source.{name}", value) for name, value in out.within[score])
    return _values([*within, ("power.share", out.power)], out.drawn, out.n)


def _rows(rows: Mapping[str, Unseen | WithinSource]) -> dict[str, Values]:
    return {row: _values(figures) for row, figures in rows.items()}


def _values(
    figures: Iterable[tuple[str, float | None]], drawn: Draws | None = None, n: int | None = None
) -> Values:
    return {name: Value(value=value, n=n, drawn=(drawn or {}).get(name, ())) for name, value in figures}


def _joint(stream: Stream, setup: Setup, seed: Seed) -> tuple[float, float]:
    """Return the AA of training on all tasks at once, in points, and the seconds that it took."""
    joint = replace(setup, learner="dytox-joint" if setup.learner.startswith("dytox") else "joint")
    path = seed.parts / "joint.safetensors"
    say = with_prefix(seed.progress, "joint")
    begun = seed.parts / "joint-begun.safetensors"
    learnt = train_without(stream.tasks, joint, seed.number, frozenset(), begun, say, path)
    aa = 100 * float(np.mean([rightly_told(learnt, setup, task.test) for task in stream.tasks]))
    return aa, seconds_in(path.with_suffix(".json"))

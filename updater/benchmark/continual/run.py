"""A stream as a benchmark: learnt task by task, beside joint training, and with each family left out."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from detector.release.manifest import FEATURE_VERSION
from ingest.durable import write_durably
from updater.benchmark.continual.continual import Continual, mean_of, means_over_sets
from updater.benchmark.continual.left_out import LeftOut, leave_out, train_without
from updater.benchmark.continual.resampled import Draws, resample_figures
from updater.benchmark.continual.scoring import rightly_told
from updater.benchmark.continual.setup import Setup
from updater.benchmark.continual.streams import with_features
from updater.benchmark.data.tasks import Stream
from updater.benchmark.report.harness import Benchmark, Seed
from updater.benchmark.report.outcome import Outcome, Value, Values
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
from updater.benchmark.report.run_folder import save_scores, seconds_in, timing
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
    crops = stream.plan.model_dump(mode="json")

    def measure_seed(featured: Stream, seed: Seed) -> Outcome:
        out: list[list[dict[str, LeftOut]]] = [[], []]
        continual = Continual(featured, setup, seed.number, seed.parts, seed.progress)
        learnt = continual.run()
        joint = _joint(featured, setup, seed)
        if leave_families_out:
            plain = seed.number == first_seed
            out = [
                _left_out(featured, setup, seed, kinds, source_known=known, plain=plain and not known)
                for known in (False, True)
            ]
        return _outcome(featured, setup, seed, continual, learnt, joint, *out)

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


def _outcome(
    stream: Stream,
    setup: Setup,
    seed: Seed,
    continual: Continual,
    learnt: tuple[list[list[float]], list[StreamStep], dict[str, RejectionScores]],
    joint: tuple[float, float],
    out: Sequence[Mapping[str, LeftOut]],
    out_source_known: Sequence[Mapping[str, LeftOut]],
) -> Outcome:
    """Put all that was measured together, and write the scores of rejection into the seed's folder."""
    (columns, steps, scores), (joint_aa, joint_s), first = learnt, joint, setup.rejection[0]
    matrix = [[c[i] if i < len(c) else float("nan") for c in columns] for i in range(len(columns))]
    by_score = {name: mean_of(Unseen, rows) for name, rows in continual.unseen.items()}
    by_set = {
        name: {outliers: mean_of(Unseen, rows) for outliers, rows in sets.items()}
        for name, sets in continual.unseen_sets.items()
    }
    by_score_known: dict[str, Unseen] = {}
    by_score_within: dict[str, WithinSource] = {}
    if out:
        by_score, by_score_known = _by_score(setup, out), _by_score(setup, out_source_known)
        by_score_within = {
            name: mean_of(WithinSource, [family[name].within for family in out_source_known])
            for name in setup.rejection
        }
        scores |= {f"without {family[first].family}": family[first].scores for family in out}
    by_first = [[family[first] for family in scored] for scored in (out, out_source_known)]
    drawn, drawn_of_family = resample_figures(stream, continual.on_tests, scores, *by_first)
    updates = [step.seconds["training"] for step in steps[1:]]
    figures = steps[-1].figures.model_copy(
        update={
            "joint_aa": joint_aa,
            "af": af(matrix),
            "af_paper": af_paper(matrix),
            "unseen": by_score.get(first, Unseen()),
            "source_known": by_score_known.get(first, Unseen()),
            "within_source": by_score_within.get(first, WithinSource()),
            **_of_source_known(by_first[1], drawn.get("power.share", ())),
            **means_over_sets(by_set.get(first, {}), stream.outliers),
            "update_cost": float(np.mean(updates)) / joint_s if updates and joint_s else None,
        }
    )
    if is_first():
        save_scores(seed.folder, scores)
    return Outcome(
        figures={
            name: Value(value=value, drawn=drawn.get(name, ())) for name, value in figures.flat().items()
        },
        families={left.family: _of_family(left, drawn_of_family[left.family]) for left in by_first[1]},
        tasks=tuple(task.name for task in stream.tasks),
        matrix=tuple(tuple(row) for row in matrix),
        steps=tuple(steps),
        rejection=_values(by_score),
        rejection_source_known=_values(by_score_known),
        rejection_within_source=_values(by_score_within),
        outlier_sets={score: _values(sets) for score, sets in by_set.items()},
        notes=stream.notes,
    )


def _of_family(out: LeftOut, drawn: Mapping[str, Draws]) -> Values:
    """Return how a family fares within its source, which is known; each figure is of all its forgeries."""
    figures = {f"within_source.{name}": value for name, value in out.within}
    figures["power.share"] = float(out.not_real.mean())
    n = len(out.not_real)
    return {name: Value(value=value, n=n, drawn=drawn.get(name, ())) for name, value in figures.items()}


def _values(rows: Mapping[str, Unseen | WithinSource]) -> dict[str, Values]:
    return {row: {name: Value(value=value) for name, value in figures} for row, figures in rows.items()}


def _by_score(setup: Setup, out: Sequence[Mapping[str, LeftOut]]) -> dict[str, Unseen]:
    return {name: mean_of(Unseen, [family[name].unseen for family in out]) for name in setup.rejection}


def _of_source_known(left_out: Sequence[LeftOut], powers: Sequence[float]) -> dict[str, object]:
    """Return the figures of known sources alone: the power, and the score of the lone source."""
    if not left_out:
        return {}
    lone = [family.lone_source_auc for family in left_out if family.lone_source_auc is not None]
    low, high = interval(powers) or (None, None)
    share = float(np.mean([family.not_real.mean() for family in left_out]))
    return {
        "lone_source_auc": float(np.mean(lone)) if lone else None,
        "power": PowerShare(share=share, low=low, high=high),
    }


def _joint(stream: Stream, setup: Setup, seed: Seed) -> tuple[float, float]:
    """Return the AA of training on all tasks at once, in points, and the seconds that it took."""
    done, clock = seed.parts / "joint-aa.json", seed.parts / "joint.json"
    if done.is_file():
        joint_aa = float(json.loads(done.read_bytes()))
    else:
        file = seed.parts / "joint.safetensors"
        with timing(clock):
            learnt = train_without(
                stream.tasks,
                replace(setup, learner="joint"),
                seed.number,
                frozenset(),
                file,
                with_prefix(seed.progress, "joint"),
            )
        shares = [rightly_told(learnt, setup, task.test) for task in stream.tasks]
        joint_aa = 100 * float(np.mean(shares))
        if is_first():
            write_durably(done, json.dumps(joint_aa).encode())
    return joint_aa, seconds_in(clock)


def _left_out(
    stream: Stream, setup: Setup, seed: Seed, kinds: Kinds, *, source_known: bool, plain: bool
) -> list[dict[str, LeftOut]]:
    return [
        leave_out(
            stream,
            setup,
            seed.number,
            task.name,
            kinds.get(task.name, frozenset()),
            source_known=source_known,
            plain=plain,
            folder=seed.parts,
            progress=seed.progress,
        )
        for task in stream.tasks
    ]

"""A run's figures on images drawn again, for the intervals in its tables."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from updater.benchmark.continual.left_out import LeftOut
from updater.benchmark.continual.scoring import JudgedItems
from updater.benchmark.data.tasks import Stream, Task, is_real
from updater.benchmark.report.results import (
    ROUNDS,
    Counts,
    Drawn,
    RejectionScores,
    Resamples,
    aurocs,
    caught_shares,
    shares,
)
from updater.candidate.calibrate import reals
from updater.data.training_data import LabelledCrops

_FAMILIES_SEED = 1

Draws = tuple[float, ...]
"""a figure on each draw"""


def resample_figures(
    stream: Stream,
    on_tests: Sequence[JudgedItems],
    scores: Mapping[str, RejectionScores],
    left_out: Sequence[LeftOut],
    left_out_source_known: Sequence[LeftOut],
) -> tuple[dict[str, Draws], dict[str, dict[str, Draws]]]:
    """Return a run's figures on each draw of the stream's images, by their names in `Figures`.

    And those within a source and the power of each family, by its name. AA and real/fake AUC are of on_tests,
    the tests of each task after the last; AUC and share caught at 5 % are means over the families left out,
    or where none is over the steps (scores: by `step NUMBER`).
    """
    images = images_of(stream)
    unseen = [_of_left_out(stream, out, images, source_known=False) for out in left_out]
    known = [_of_left_out(stream, out, images, source_known=True) for out in left_out_source_known]
    figures = _continual(on_tests, images)
    figures |= _mean("unseen", unseen or list(_of_steps(stream, scores, images)))
    figures |= _mean("source_known", known)
    within = {out.family: _within_source(stream, out, images) for out in left_out_source_known}
    figures |= _over_families(list(within.values()))
    return _as_draws(figures), {family: _as_draws(of) for family, of in within.items()}


def _as_draws(figures: Mapping[str, Drawn]) -> dict[str, Draws]:
    return {name: tuple(values.tolist()) for name, values in figures.items()}


def images_of(stream: Stream) -> Resamples:
    """Return draws of all images of a stream, the same for all that is measured on it."""
    # Each class of each part of a task keeps its own number.
    parts = [
        (f"{part} {name}", group)
        for task in stream.tasks
        for part in ("test", "calibration", "train")
        for items in [getattr(task, part)]
        for name, group in zip(items.families, items.groups, strict=True)
    ]
    parts += [
        (f"outliers {outlier.name} {name}", group)
        for outlier in stream.outliers
        for name, group in zip(outlier.items.families, outlier.items.groups, strict=True)
    ]
    return Resamples([group for _, group in parts], [stratum for stratum, _ in parts])


def _continual(on_tests: Sequence[JudgedItems], images: Resamples) -> dict[str, Drawn]:
    drawn = [images.of(test.groups.tolist()) for test in on_tests]
    accuracies = [shares(test.right, counts) for test, counts in zip(on_tests, drawn, strict=True)]
    values = {"aa": 100 * np.mean(accuracies, 0)}
    fakes = [~reals(test.families) for test in on_tests]
    if all(0 < fake.sum() < len(fake) for fake in fakes):
        areas = [
            aurocs(run.fake_probability[fake], run.fake_probability[~fake], counts[:, fake], counts[:, ~fake])
            for run, counts, fake in zip(on_tests, drawn, fakes, strict=True)
        ]
        values["real_fake_auc"] = np.mean(areas, 0)
    return values


def _of_left_out(stream: Stream, out: LeftOut, images: Resamples, *, source_known: bool) -> dict[str, Drawn]:
    (left,) = (task for task in stream.tasks if task.name == out.family)
    # In the order in which `leave_out` scores them.
    known = [group for task in stream.tasks if task is not left for group in task.test.groups]
    if source_known:
        known += _groups(left.test, fake=False)
    return _rejection(out.scores, known, _forgeries(left), images)


def _forgeries(left: Task) -> list[str]:
    return [g for part in (left.train, left.calibration, left.test) for g in _groups(part, fake=True)]


def _within_source(stream: Stream, out: LeftOut, images: Resamples) -> dict[str, Drawn]:
    """Return the figures of a family within its source, and its power."""
    (left,) = (task for task in stream.tasks if task.name == out.family)
    unknown, own = images.of(_forgeries(left)), images.of(_groups(left.test, fake=False))
    values = _rejection_of(out.scores.unknown, out.scores.control, unknown, own)
    energies = out.scores.unknown_own_energy, out.scores.control_own_energy
    if all(map(len, energies)):
        values["own_energy_auc"] = aurocs(*energies, unknown, own)
    figures = {f"within_source.{name}": drawn for name, drawn in values.items()}
    return figures | {"power.share": shares(out.not_real, unknown)}


def _over_families(values: Sequence[Mapping[str, Drawn]]) -> dict[str, Drawn]:
    """Return the means over the families; of the power on families drawn anew, too, as it is of any."""
    if not values:
        return {}
    means: dict[str, Drawn] = {name: np.mean([of[name] for of in values], 0) for name in values[0]}
    drawn = np.random.default_rng(_FAMILIES_SEED).integers(0, len(values), (len(values), ROUNDS))
    powers = np.array([of["power.share"] for of in values])
    return means | {"power.share": np.take_along_axis(powers, drawn, 0).mean(0)}


def _of_steps(
    stream: Stream, scores: Mapping[str, RejectionScores], images: Resamples
) -> Iterator[dict[str, Drawn]]:
    for number in range(len(stream.tasks)):
        if (of_step := scores.get(f"step {number + 1}")) is not None:
            known = [group for task in stream.tasks[: number + 1] for group in task.test.groups]
            outliers = [outlier.at(number, len(stream.tasks)) for outlier in stream.outliers]
            unknown = [group for items in outliers for group in _groups(items, fake=True)]
            yield _rejection(of_step, known, unknown, images)


def _groups(items: LabelledCrops, *, fake: bool) -> list[str]:
    pairs = zip(items.families, items.groups, strict=True)
    return [group for name, group in pairs if is_real(name) is not fake]


def _rejection(
    scores: RejectionScores, known: Sequence[str], unknown: Sequence[str], images: Resamples
) -> dict[str, Drawn]:
    return _rejection_of(scores.unknown, scores.known, images.of(unknown), images.of(known))


def _rejection_of(
    unknown: NDArray[np.float32], known: NDArray[np.float32], of_unknown: Counts, of_known: Counts
) -> dict[str, Drawn]:
    return {
        "auc": aurocs(unknown, known, of_unknown, of_known),
        "caught_at_5": caught_shares(unknown, known, of_unknown, of_known),
    }


def _mean(part: str, values: Sequence[Mapping[str, Drawn]]) -> dict[str, Drawn]:
    return {f"{part}.{name}": np.mean([row[name] for row in values], 0) for name in (values or [{}])[0]}

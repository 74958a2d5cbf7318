"""A run's figures on images drawn again, for the intervals in its tables, by their names in `Figures`."""

from collections.abc import Mapping, Sequence

import numpy as np

from updater.benchmark.continual.scoring import JudgedItems
from updater.benchmark.data.tasks import Stream
from updater.benchmark.report.results import ROUNDS, Drawn, Resamples, aurocs, caught_shares, shares
from updater.candidate.calibrate import reals

_FAMILIES_SEED = 1

Draws = dict[str, tuple[float, ...]]
"""each figure on each draw"""


def images_of(stream: Stream) -> Resamples:
    """Return draws of all images of a stream, the same for all that is measured on it."""
    # Each class of each part of a task keeps its own number.
    parts = [
        (part, getattr(task, part)) for task in stream.tasks for part in ("test", "calibration", "train")
    ]
    parts += [(f"outliers {outlier.name}", outlier.items) for outlier in stream.outliers]
    strata = [f"{part} {name}" for part, items in parts for name in items.families]
    return Resamples([group for _, items in parts for group in items.groups], strata)


def accuracy_draws(on_tests: Sequence[JudgedItems], images: Resamples) -> Draws:
    """Return AA, and the mean of the tasks' real/fake AUC where each task has both kinds."""
    drawn = [images.of(test.groups.tolist()) for test in on_tests]
    pairs = list(zip(on_tests, drawn, [~reals(test.families) for test in on_tests], strict=True))
    values = {"aa": 100 * np.mean([shares(test.right, counts) for test, counts, _ in pairs], 0)}
    if all(0 < fake.sum() < len(fake) for _, _, fake in pairs):
        areas = [
            aurocs(of.fake_probability[fake], of.fake_probability[~fake], counts[:, fake], counts[:, ~fake])
            for of, counts, fake in pairs
        ]
        values["real_fake_auc"] = np.mean(areas, 0)
    return _as_draws(values)


def rejection_draws(
    part: str, known: JudgedItems, unseen: JudgedItems, name: str, images: Resamples | None
) -> Draws:
    """Return a score's AUC and share caught at 5 %: of the unseen forgeries against the known items."""
    if images is None:
        return {}
    fakes = unseen.take(~reals(unseen.families))
    scores = fakes.rejection[name], known.rejection[name]
    of_fakes, of_known = (images.of(of.groups.tolist()) for of in (fakes, known))
    both = *scores, of_fakes, of_known
    return _as_draws({f"{part}.auc": aurocs(*both), f"{part}.caught_at_5": caught_shares(*both)})


def within_draws(fakes: JudgedItems, own: JudgedItems, name: str, images: Resamples) -> Draws:
    """Return the figures of forgeries within their source, of which `own` are reals, and their power."""
    counts, of_own = (images.of(of.groups.tolist()) for of in (fakes, own))
    return rejection_draws("within_source", own, fakes, name, images) | _as_draws(
        {
            "within_source.own_energy_auc": aurocs(fakes.energy, own.energy, counts, of_own),
            "power.share": shares(fakes.labels != "real", counts),
        }
    )


def _as_draws(figures: Mapping[str, Drawn]) -> Draws:
    return {name: tuple(values.tolist()) for name, values in figures.items()}


def mean_draws(rows: Sequence[Mapping[str, Sequence[float]]]) -> Draws:
    """Return the means over rows; of the power on rows drawn anew, too, as it is of any family."""
    means = {name: np.mean([row[name] for row in rows], 0) for name in (rows or [{}])[0]}
    if "power.share" in means:
        drawn = np.random.default_rng(_FAMILIES_SEED).integers(0, len(rows), (len(rows), ROUNDS))
        powers = np.array([row["power.share"] for row in rows])
        means["power.share"] = np.take_along_axis(powers, drawn, 0).mean(0)
    return _as_draws(means)

"""OpenCIL's protocol: each outlier set on its own, and the means over all of them, the near and the far ones.

Miao et al. 2024, "OpenCIL: Benchmarking Out-of-Distribution Detection in Class-Incremental Learning", section
3.3 and appendix C.2: a set's figure is its mean over the steps, and what a table prints is the mean over the
sets. Pooled, a large set outweighs the others, and easy outliers hide hard ones.
"""

from collections.abc import Iterable, Mapping

from updater.benchmark.continual.continual import mean_of
from updater.benchmark.data.tasks import OutlierSet
from updater.benchmark.report.results import Unseen


def means_over_sets(sets: Mapping[str, Unseen], outliers: Iterable[OutlierSet]) -> dict[str, Unseen]:
    """Return the means over all sets, and over those that are near or far, by the names of `Figures`.

    sets: the figures of each set that was measured. There is no mean of none.
    """
    distances = {one.name: one.distance for one in outliers}
    parts = {
        "each_set": list(sets.values()),
        "near": [one for name, one in sets.items() if distances[name] == "near"],
        "far": [one for name, one in sets.items() if distances[name] == "far"],
    }
    return {name: mean_of(Unseen, part) for name, part in parts.items() if part}

"""The gate's weights learnt by leaving families out inside the training families: what would they be worth?

The weights of `scores/registry.py` were chosen on families that are reported. So each family of a
stream is left out of everything, and each other family beside it once more: the weights learnt are those by
which, on average, the forgeries of that inner family are best told from items that were held back of what is
known then. Then the outer family, which had no part in the networks and none in the weights, is told by the
gate with these weights and with the registry's. Its source's reals are known throughout.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from detector.model.scores.registry import SCORES
from detector.model.scores.score import NetworkOutput
from updater.benchmark.continual.items import joined
from updater.benchmark.continual.left_out import trained, without_families
from updater.benchmark.continual.resampled import images_of
from updater.benchmark.continual.scoring import output_of
from updater.benchmark.continual.setup import Progress, Setup
from updater.benchmark.data.tasks import Stream
from updater.benchmark.report.bootstrap import Resamples, Values, aurocs, interval
from updater.candidate.calibrate import Targets, common_scales, gate_inputs, reals, unknown_scores
from updater.candidate.power import RECIPE
from updater.candidate.reference_set import REFERENCE_ROWS, equal_shares, make_reference
from updater.data.training_data import LabelledCrops
from updater.measures import auroc, balanced_weights

Weights = Mapping[str, float]
"""by the names of detector/model/scores/registry.py"""

REGISTRY: Weights = {name: entry.weight for name, entry in SCORES.items()}
TRIED = (0.0, 0.5, 1.0, 2.0, 3.0, 4.0)
_TURNS = 4
_LEAST_GAIN = 1e-4


class Without:
    """A network that some families' forgeries were kept from, and how a gate of any weights scores items."""

    def __init__(self, said: Mapping[str, NetworkOutput], parts: Mapping[str, LabelledCrops]) -> None:
        """said: what the network says of each of the parts `train`, `held`, `tests` and `unseen`."""
        families, ids = parts["train"].families, parts["train"].ids
        rows = equal_shares(np.array(families), np.array(ids), REFERENCE_ROWS)
        known = NetworkOutput(*(one[rows] for one in said["train"]))
        reference = make_reference(known, [families[row] for row in rows], [ids[row] for row in rows])
        self.parts = parts
        self._measured = {name: gate_inputs(said[name], reference) for name in parts if name != "train"}
        held = parts["held"]
        weights = balanced_weights(np.array(held.families), np.array(held.groups))
        self._scales = common_scales(self._measured["held"], weights, Targets())

    def scores(self, part: str, weights: Weights) -> NDArray[np.float32]:
        """Return the unknown score of each item of a part by a gate of these weights, float32 [n]."""
        terms = {
            name: term.model_copy(update={"weight": weights[name]})
            for name, term in self._scales.terms.items()
        }
        return unknown_scores(self._measured[part], self._scales.model_copy(update={"terms": terms}))

    def told(self, family: str, weights: Weights) -> float:
        """Return the AUC of a family's unseen forgeries against the items held back, 0..1."""
        own = _of(family, self.parts["unseen"])
        return auroc(self.scores("unseen", weights)[own], self.scores("held", weights))


@dataclass(frozen=True)
class Learnt:
    """The weights learnt without one family, by one seed."""

    family: str
    seed: int
    weights: Weights


@dataclass(frozen=True)
class Compared:
    """An AUC by both weights, 0..1, as a mean over families and seeds; 95 % of the gain over images."""

    registry: float
    learnt: float
    low: float
    high: float


def measure(
    stream: Stream,
    setup: Setup,
    seeds: Sequence[int],
    kinds: Mapping[str, frozenset[str]],
    folder: Path,
    progress: Progress,
) -> tuple[list[Learnt], dict[str, Compared]]:
    """Learn the weights without each family of a stream; compare what they tell of it with the registry's.

    The comparisons are of its forgeries within their source (its held-back reals) and against all tests of
    what is known. Networks are trained as an update's power is measured. kinds: of the pseudo-forgeries that
    are left out with each family. folder: of what an interrupted training goes on from. Raises ValueError for
    fewer than three families.
    """
    names = [task.name for task in stream.tasks]
    if len(names) < 3:
        raise ValueError("with two families left out nothing is known of forgery: name three tasks at least")
    images, learnt = images_of(stream), list[Learnt]()
    found: dict[str, list[list[Values]]] = {"within source": [], "against all tests": []}
    for number, seed in enumerate(seeds):
        networks = _Networks(stream, setup, seed, kinds, folder)
        for place, family in enumerate(names):
            progress("weights", number * len(names) + place, len(seeds) * len(names))
            weights = best({other: networks.without(family, other) for other in names if other != family})
            learnt.append(Learnt(family, seed, weights))
            outer = networks.without(family)
            tests = outer.parts["tests"]
            own = _of(family, tests) & reals(tests.families)
            for name, against in (("within source", own), ("against all tests", np.full(len(tests), True))):
                found[name].append([_aucs(outer, one, against, images) for one in (REGISTRY, weights)])
    return learnt, {name: _compared(values) for name, values in found.items()}


def best(inner: Mapping[str, Without]) -> Weights:
    """Return the weights by which each family is best told by the network that was kept from it, on average.

    By turns: each weight is moved to the best of a few while the others stay, from the registry's on.
    """

    def value(weights: Weights) -> float:
        return float(np.mean([one.told(family, weights) for family, one in inner.items()]))

    chosen = dict(REGISTRY)
    reached = value(chosen)
    for _ in range(_TURNS):
        before = reached
        for name in REGISTRY:
            for weight in TRIED:
                moved = chosen | {name: weight}
                if any(moved.values()) and (now := value(moved)) > reached + _LEAST_GAIN:
                    chosen, reached = moved, now
        if reached == before:
            break
    return chosen


@dataclass(frozen=True)
class _Networks:
    """The networks of one seed, each trained when it is first asked for."""

    stream: Stream
    setup: Setup
    seed: int
    kinds: Mapping[str, frozenset[str]]
    folder: Path
    made: dict[frozenset[str], Without] = field(default_factory=dict)

    def without(self, *families: str) -> Without:
        """Return the network that these families' forgeries were kept from."""
        out = frozenset(families)
        if out not in self.made:
            self.made[out] = self._train(sorted(out))
        return self.made[out]

    def _train(self, families: Sequence[str]) -> Without:
        tasks, unseen = without_families(self.stream, families, True)
        left = frozenset[str]().union(*(self.kinds.get(name, frozenset()) for name in families))
        file = self.folder / "gate-weights.safetensors"
        network = trained(tasks, self.setup, self.seed, left, file, _unsaid, RECIPE)
        parts = {
            "train": joined([task.train for task in tasks]),
            "held": joined([task.calibration for task in tasks]),
            "tests": joined([task.test for task in tasks]),
            "unseen": unseen,
        }
        device = self.setup.torch_device
        return Without({name: output_of(network, part, device) for name, part in parts.items()}, parts)


def _of(family: str, items: LabelledCrops) -> NDArray[np.bool_]:
    """Return which items are of a family's source, bool [n]."""
    return np.array([name.partition("/")[0] == family for name in items.families], bool)


def _unsaid(stage: str, done: int, total: int) -> None:
    """Of a training that takes seconds nothing is told."""


def _aucs(outer: Without, weights: Weights, against: NDArray[np.bool_], images: Resamples) -> Values:
    """Return the AUC itself, and then that of each draw of the images."""
    fakes, known = outer.scores("unseen", weights), outer.scores("tests", weights)[against]
    of_fakes, of_tests = (images.of(outer.parts[part].groups) for part in ("unseen", "tests"))
    return np.concatenate([[auroc(fakes, known)], aurocs(fakes, known, of_fakes, of_tests[:, against])])


def _compared(found: Sequence[Sequence[Values]]) -> Compared:
    registry, learnt = np.array(found).mean(0)
    low, high = interval((learnt - registry)[1:]) or (np.nan, np.nan)
    return Compared(float(registry[0]), float(learnt[0]), low, high)

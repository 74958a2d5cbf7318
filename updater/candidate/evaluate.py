"""How a release judges held-back items: by the exported graph and the gate, as it will be served."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from detector.model.network import Network
from detector.model.scores import Score, fuse_scores
from detector.release.artifact import Reference
from detector.release.contract import PICTURE, Contract
from detector.release.manifest import GateParameters, decide
from detector.release.tensors import ModelOutput, Request
from detector.serving.session import Session
from detector.verdicts import fake_probabilities
from memory.records import REAL
from updater.candidate.gate_inputs import GateInputs, Part, gate_inputs
from updater.data.training_data import LabelledCrops
from updater.evaluation_parts import RocPoint
from updater.experts.calibrate import ExpertsSay
from updater.intervals import declared_recall
from updater.measures import auroc, balanced_weights, roc_points
from updater.progress import Steps, no_steps
from updater.records import Performance, Shares
from updater.training.crop_rows import in_turn

_ITEMS_AT_ONCE = 16
_ROC_POINTS = 200
"""kept of a curve at most"""


@dataclass(frozen=True)
class Calls:
    """A model's calls of n items, [n] each."""

    labels: NDArray[np.str_]
    families: NDArray[np.str_]
    """the likeliest family, whatever the label"""
    unknown: NDArray[np.floating[Any]]
    """the gate's unknown score"""
    energy: NDArray[np.floating[Any]]
    fake: NDArray[np.floating[Any]]
    """fake probability"""
    features: NDArray[np.float32] | None = None
    """[n, F], the raw features that the model read; None where its graph gives none"""

    def correctly_named(self, items: LabelledCrops) -> NDArray[np.bool_]:
        """Return which items got the label of their class and, where that is a family, its very name."""
        classes = np.array(items.families)
        forged = (self.labels == "fake") & (self.families == classes)
        return np.asarray(np.where(classes == REAL, self.labels == REAL, forged))

    def right(self, items: LabelledCrops) -> NDArray[np.bool_]:
        """Return which items are called rightly, bool [n]: reals real, forgeries anything else."""
        return np.asarray((self.labels == REAL) == (np.array(items.families) == REAL))

    @property
    def names(self) -> NDArray[np.str_]:
        """Each item's call: real, unknown, or the family of a fake."""
        return np.where(self.labels == "fake", self.families, self.labels)


@dataclass(frozen=True)
class GatedNetwork:
    """A gate and its further inputs, for a network that is not exported yet."""

    gate: GateParameters
    classes: tuple[str, ...]
    reference: Reference | None
    scores: Mapping[str, Score]
    """as of `network_scores`"""
    experts: ExpertsSay | None = None
    fake: Tensor | None = None
    """as of `gate_inputs`"""

    def measure(self, part: Part) -> GateInputs:
        return gate_inputs(part.output, self.scores, self.experts and self.experts.of(part.items), self.fake)

    def calls(self, part: Part) -> Calls:
        items, measured = part.items, self.measure(part)
        unknown, fake = unknown_scores(measured, self.gate), measured.fake_probability
        labels = labels_of(unknown, fake, self.gate, items.videos, items.sources)
        families = np.array(self.classes[1:])[measured.logits[:, 1:].argmax(1)]
        return Calls(labels, families, unknown, measured.scores["energy"], fake)


@dataclass(frozen=True)
class FrozenHead:
    """Answers as the graph of a network of frozen features does, from raw ones."""

    network: Network
    judge: GatedNetwork

    def calls(self, items: LabelledCrops, features: NDArray[np.float32]) -> Calls:
        with torch.no_grad():
            output = self.network.classify(torch.zeros(len(features), 0), torch.from_numpy(features))
        return self.judge.calls(Part(items, output, np.zeros((len(items), 0))))


@dataclass(frozen=True)
class GatedModel:
    """A model with its gate. Every model that is compared is to get the same items."""

    session: Session[Contract]
    gate: GateParameters
    classes: tuple[str, ...]
    head: FrozenHead | None = None
    """of a model that makes the same features as who is compared"""

    def calls(
        self, items: LabelledCrops, progress: Steps = no_steps, features: NDArray[np.float32] | None = None
    ) -> Calls:
        """Return its call of each item. features: the items' raw ones, float32 [n, F], if known."""
        if self.head is not None and features is not None:
            return self.head.calls(items, features)
        scored = score_items(self.session, items, lambda done: progress(done, len(items)))
        logits, unknown = scored["logits"], scored["unknown_score"]
        fake = fake_probabilities(logits)
        labels = labels_of(unknown, fake, self.gate, items.videos, items.sources)
        families = np.array(self.classes[1:])[logits[:, 1:].argmax(1)]
        return Calls(labels, families, unknown, scored["energy"], fake, scored.get("features"))


def performance_of(
    items: LabelledCrops, calls: Calls, pseudo: Calls, familiar: frozenset[str]
) -> Performance:
    """Return how held-back items fared, and how well pseudo-forgeries are told from the `familiar` classes.

    The pseudo-forgeries are the positive class of the AUROC, scored by the gate's unknown score and, beside
    it, by the energy alone.
    """
    families, groups, named = np.array(items.families), np.array(items.groups), calls.correctly_named(items)
    weights = balanced_weights(families, groups)
    shares = {}
    for family in sorted(set(items.families)):
        mine = families == family
        shares[family] = Shares(
            items=int(mine.sum()),
            groups=len(set(groups[mine])),
            named=float(np.average(named[mine], weights=weights[mine])),
            **{
                label: float(np.average(calls.labels[mine] == label, weights=weights[mine]))
                for label in (REAL, "fake", "unknown")
            },
        )
    met = np.isin(families, list(familiar))
    declared = (families != REAL) & (False if items.declared is None else items.declared)
    return Performance(
        classes=shares,
        rejection_auroc=auroc(pseudo.unknown, calls.unknown[met]),
        rejection_energy_auroc=auroc(pseudo.energy, calls.energy[met]),
        confusion={
            family: dict(sorted(Counter(calls.names[families == family].tolist()).items()))
            for family in shares
        },
        rejection_roc=tuple(
            RocPoint(*point) for point in roc_points(pseudo.unknown, calls.unknown[met], _ROC_POINTS).tolist()
        ),
        declared=declared_recall(int((calls.labels[declared] != REAL).sum()), int(declared.sum())),
        rejected=_rejection_point(calls.labels[met], pseudo.labels),
    )


def _rejection_point(familiar: NDArray[np.str_], forged: NDArray[np.str_]) -> RocPoint | None:
    if not len(familiar) or not len(forged):
        return None
    return RocPoint(float(np.mean(familiar == "unknown")), float(np.mean(forged == "unknown")))


def score_items(
    session: Session[Contract], items: LabelledCrops, progress: Callable[[int], None] = lambda done: None
) -> ModelOutput:
    """Score whole items, each the mean of its crops; the rows are the items in their order.

    Their pictures are left out where the model looks at none.

    As many batches run beside one another as torch has threads, so a session of one thread is the quickest.
    """
    threads, parts = torch.get_num_threads(), []
    if not any(spec.name == PICTURE for spec in session.contract.inputs):
        items = replace(items, pictures=None)

    def score_part(first: int) -> ModelOutput:
        return session.score(batch(items.take(range(first, min(first + _ITEMS_AT_ONCE, len(items))))))

    with ThreadPoolExecutor(threads) as pool:
        for part in in_turn(pool, score_part, range(0, len(items), _ITEMS_AT_ONCE), 2 * threads):
            parts.append(part)
            progress(min(len(parts) * _ITEMS_AT_ONCE, len(items)))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def batch(items: LabelledCrops) -> Request:
    """Return one request: crops uint8 [T, S, S, 3], and a mean an item; and pictures, if items have them."""
    counts = np.diff(items.starts)
    pooling = np.zeros((len(items), len(items.crops)), np.float32)
    pooling[np.repeat(np.arange(len(items)), counts), np.arange(len(items.crops))] = np.repeat(
        1 / counts, counts
    )
    request: dict[str, NDArray[Any]] = {"crops": items.crops[:], "pooling": pooling}
    if items.pictures is not None:
        request |= {PICTURE: items.pictures[:], "picture_pooling": np.eye(len(items), dtype=np.float32)}
    return request


def spread(items: LabelledCrops, count: int) -> LabelledCrops:
    """Take at most `count` items, of all classes in turn."""
    seen: dict[str, int] = {}
    turns = []
    for place, family in enumerate(items.families):
        seen[family] = seen.get(family, 0) + 1
        turns.append((seen[family], family, place))
    return items.take(place for _, _, place in sorted(turns)[:count])


def unknown_scores(measured: GateInputs, gate: GateParameters) -> NDArray[np.float32]:
    """Return the gate's unknown score of each item, float32 [n]."""
    scores = {name: torch.from_numpy(values) for name, values in measured.scores.items()}
    return np.asarray(fuse_scores(scores, gate).numpy(), np.float32)


def labels_of(
    unknown: NDArray[np.floating[Any]],
    fake_probability: NDArray[np.floating[Any]],
    gate: GateParameters,
    videos: NDArray[np.bool_] | None = None,
    sources: Sequence[str] | NDArray[np.str_] | None = None,
) -> NDArray[np.str_]:
    """Return each item's label, str [n], by its unknown score and its fake probability, floats [n] each.

    videos: which items are videos, bool [n]; None: none is known to be one. sources: of each item; None: none
    is known, and all are judged by the pooled thresholds.
    """
    kinds = np.zeros(len(unknown), bool) if videos is None else videos
    of = [""] * len(unknown) if sources is None else sources
    items = zip(unknown, fake_probability, kinds, of, strict=True)
    return np.array(
        [decide(float(u), float(f), gate, video=bool(video), source=str(s)) for u, f, video, s in items], str
    )

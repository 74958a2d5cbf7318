"""The power of a candidate: how much of a family that it has never seen it would not call real.

Nobody has the forgeries of tomorrow, but each known family was unknown once. So each is left out in turn:
the part above the frozen backbone is trained anew on all other classes, the gate is calibrated anew, and the
family's training and calibration items are judged at the new thresholds, since nothing has seen them then. A
backbone that is trained on crops has seen the family, which flatters; forensic features have not.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from detector.model.network import Network
from detector.model.scores import NetworkOutput
from memory.records import REAL
from updater.candidate.calibrate import fake_probabilities_around, fit_gate, labels_of, unknown_scores
from updater.candidate.gate_inputs import gate_inputs
from updater.candidate.gates import ITEMS_SHOWN
from updater.candidate.plan import Plan, live_calls
from updater.candidate.reference_set import REFERENCE_ROWS, CalibrationError, equal_shares, make_reference
from updater.candidate.thresholds import LiveCalls
from updater.data.stored_rows import chosen_rows, joined_rows
from updater.data.training_data import LabelledCrops
from updater.draws import RandomStream
from updater.experts.calibrate import calibrated_experts
from updater.outliers.exposure import expose
from updater.progress import Progress
from updater.records import Caught, Power
from updater.training import loop, schemes
from updater.training.batches import TrainingSet
from updater.training.crop_rows import Rows
from updater.training.losses import classification
from updater.training.pools import backbone_rows, classify_items, crop_features, joined_tensors
from updater.training.step import FIRST, Step

RECIPE = replace(FIRST, balanced_steps=500, pseudo_share=0.1)
"""shorter than a candidate's own, for there is one training a family"""
_ROUNDS = 1000


@dataclass(frozen=True)
class Fared:
    """How n items of a family fared that was left out, [n] each."""

    not_real: NDArray[np.bool_]
    """whether each is called something else than real"""
    unknown: NDArray[np.float32]
    """its unknown score"""
    groups: NDArray[np.str_]
    ids: NDArray[np.str_]


@dataclass(frozen=True)
class _Part:
    """Items without their crops, and what a head reads of these."""

    items: LabelledCrops
    rows: Rows
    """float32 [T, B], the backbone's features of each crop"""
    features: Rows
    """float32 [T, F], the raw forensic ones"""

    def take(self, chosen: NDArray[np.bool_]) -> "_Part":
        at = np.flatnonzero(np.repeat(chosen, np.diff(self.items.starts)))
        rows, features = (chosen_rows(of, at) for of in (self.rows, self.features))
        return _Part(self.items.take(np.flatnonzero(chosen)), rows, features)

    def only(self, family: str) -> "_Part":
        return self.take(np.array(self.items.families) == family)

    def without(self, family: str) -> "_Part":
        return self.take(np.array(self.items.families) != family)

    def output(self, network: Network) -> NetworkOutput:
        found = classify_items(network, self.rows, self.features, self.items.starts)
        return NetworkOutput(*(one.cpu() for one in found))


def measure_power(plan: Plan, network: Network, progress: Progress) -> Power | None:
    """Leave each family of a plan out once. network: the candidate's, whose backbone is taken as it is.

    Returns None where there is but one family: with it left out, nothing would be known of forgery. A family
    without which the other items are too few for a gate is not left out.
    """
    families = plan.classes[1:]
    if len(families) < 2:
        return None
    splits, count = plan.splits, round(len(plan.splits.train) * RECIPE.pseudo_share)
    pseudo = expose(splits.train, count, plan.without, plan.seed)
    parts = [_part(plan, network, items, progress) for items in (splits.train, splits.calibration, pseudo)]
    live = live_calls(plan, progress)
    fared: dict[str, Fared] = {}
    for number, family in enumerate(families):
        progress("power", number, len(families))
        with suppress(CalibrationError):  # too little is left to calibrate on
            fared[family] = _fared_without(plan, family, live, *parts)
    progress("power", len(families), len(families))
    return power_of(fared, plan.seed) if fared else None


def _part(plan: Plan, network: Network, items: LabelledCrops, progress: Progress) -> _Part:
    features = crop_features(network, items, plan.device, lambda *at: progress("features for power", *at))
    rows = backbone_rows(network, items.crops, plan.device)
    return _Part(replace(items, crops=np.zeros((len(items.crops), 0, 0, 3), np.uint8)), rows, features)


def _fared_without(
    plan: Plan, family: str, live: LiveCalls | None, train: _Part, calibration: _Part, pseudo: _Part
) -> Fared:
    """Return how the items of the family fare."""
    unseen = [part.only(family) for part in (train, calibration)]
    of_family = np.isin(np.array(pseudo.items.groups), np.array(unseen[0].items.groups))
    known, held = train.without(family), calibration.without(family)
    network = _learnt(plan, known, pseudo.take(~of_family))
    reference = None
    if network.forensics is not None:
        places = equal_shares(np.array(known.items.families), np.array(known.items.ids), REFERENCE_ROWS)
        some = known.take(np.isin(np.arange(len(known.items)), places))
        reference = make_reference(
            some.output(network), some.items.families, some.items.ids, some.items.sources
        )
    of_held, experts = held.output(network), None
    if plan.experts:
        classes = [name for name in plan.classes if name != family]
        contracts = [expert.contract for expert in plan.experts]
        experts = calibrated_experts(contracts, held.items, of_held.logits, classes)
    gate = fit_gate(
        gate_inputs(of_held, reference, experts),
        np.array(held.items.families),
        np.array(held.items.groups),
        live and live.take(np.array(calibration.items.families) != family),
        held.items.videos,
        np.array(held.items.sources),
    )
    not_real, scores = [], []
    for part in unseen:
        found = gate_inputs(part.output(network), reference, experts and experts.of(part.items))
        fake, unknown = fake_probabilities_around(found, gate), unknown_scores(found, gate)
        not_real.append(labels_of(unknown, fake, gate, part.items.videos, part.items.sources) != REAL)
        scores.append(unknown)
    both = LabelledCrops.join([part.items for part in unseen])
    return Fared(np.concatenate(not_real), np.concatenate(scores), np.array(both.groups), np.array(both.ids))


def _learnt(plan: Plan, known: _Part, pseudo: _Part) -> Network:
    """Train what lies above the backbone on these items alone, as the last stage of training does."""
    classes = tuple(name for name in plan.classes if name in set(known.items.families))
    step = Step(
        known.items,
        classes,
        plan.architecture,
        recipe=RECIPE,
        without=plan.without,
        seed=plan.seed,
        device=plan.device,
    )
    targets = schemes.targets(known.items.families, classes, step.options)
    data = TrainingSet(
        targets=np.array(targets + [len(classes)] * len(pseudo.items)),
        fake=schemes.fake_columns(classes),
        crops=joined_rows([known.items.crops, pseudo.items.crops]),
        starts=np.concatenate([known.items.starts, known.items.starts[-1] + pseudo.items.starts[1:]]),
        features=joined_tensors([known.features, pseudo.features]),
    )
    with torch.random.fork_rng(devices=[step.device] if step.device.type == "cuda" else []):
        torch.manual_seed(step.seed)
        network = loop.start(step)
        loop.whiten(network, step, data)
        loop.Training(step, data, loop.checkpoint(step, "power", ("balanced",))).run(
            "balanced",
            network,
            classification(step, data),
            loop.item_weights(data.targets, 1.0),
            steps=RECIPE.balanced_steps,
            rate=RECIPE.balanced_rate,
            rows=joined_tensors([known.rows, pseudo.rows]),
        )
    return network.eval()


def power_of(fared: Mapping[str, Fared], seed: int) -> Power:
    """Return the power, of how the items of each family left out fared.

    The share is the mean over families of the mean over groups. Its 95 % interval is a percentile bootstrap
    (Efron 1979) over both: families are drawn anew, and of each drawn family its groups.
    """
    rng = RandomStream.POWER.generator(seed)
    drawn = np.empty((len(fared), _ROUNDS))
    families = {}
    for row, (family, items) in enumerate(fared.items()):
        _, of = np.unique(items.groups, return_inverse=True)
        shares = np.bincount(of, items.not_real) / np.bincount(of)
        passed = np.flatnonzero(~items.not_real)
        most_familiar = passed[np.argsort(items.unknown[passed], kind="stable")[:ITEMS_SHOWN]]
        families[family] = Caught(
            items=len(items.not_real),
            groups=len(shares),
            share=float(shares.mean()),
            passed=tuple(map(str, items.ids[most_familiar])),
        )
        counts = rng.multinomial(len(shares), np.full(len(shares), 1 / len(shares)), _ROUNDS)
        drawn[row] = counts @ shares / len(shares)
    places = rng.integers(0, len(drawn), drawn.shape)
    low, high = np.quantile(np.take_along_axis(drawn, places, 0).mean(0), [0.025, 0.975])
    share = float(np.mean([one.share for one in families.values()]))
    return Power(share=share, low=float(low), high=float(high), families=families)

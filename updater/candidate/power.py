"""The power of a candidate: how much of a family that it has never seen it would not call real.

Nobody has the forgeries of tomorrow, but each known family was unknown once. So each is left out in turn: its
items are subtracted from the sums of all, discriminants solved from the rest, the gate is calibrated anew,
and the family's training and calibration items are judged at the new thresholds. Where discriminants are all
that is learnt, that is a release which has never seen the family. A network of steps has, which flatters.
"""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from detector.model.network import Network
from detector.model.scores import NetworkOutput
from memory.records import REAL
from updater.candidate.calibrate import fit_gate, labels_of, reals, unknown_scores
from updater.candidate.gate_inputs import gate_inputs
from updater.candidate.gates import ITEMS_SHOWN
from updater.candidate.left_out import Part, part_of, sums_with
from updater.candidate.plan import CandidatePlan, live_calls
from updater.candidate.reference_set import REFERENCE_ROWS, CalibrationError, equal_shares, make_reference
from updater.candidate.thresholds import LiveCalls
from updater.data.training_data import LabelledCrops
from updater.draws import SeedPurpose
from updater.experts.calibrate import calibrated_experts
from updater.progress import Progress
from updater.records import Caught, Power
from updater.training.discriminant import Discriminants, Spread, choose_shrinkage
from updater.training.sums import StatisticsError, sums_of

_ROUNDS = 1000


@dataclass(frozen=True)
class HeldOutScores:
    """How n items of a family fared that was left out, [n] each."""

    not_real: NDArray[np.bool_]
    """whether each is called something else than real"""
    unknown: NDArray[np.float32]
    """its unknown score"""
    groups: NDArray[np.str_]
    ids: NDArray[np.str_]


def measure_power(plan: CandidatePlan, network: Network, progress: Progress) -> Power | None:
    """Leave each family of a plan out once. network: the candidate's, whose embedding is taken as it is.

    Returns None where there is but one family: with it left out, nothing would be known of forgery. A family
    without which the other items are too few for a gate is not left out.
    """
    families = plan.classes[1:]
    if len(families) < 2:
        return None
    train, calibration = (
        part_of(network, items, plan.device, progress)
        for items in (plan.splits.train, plan.splits.calibration)
    )
    total = sums_with(train, None if plan.parent is None else plan.parent.statistics)
    shrunk, live = choose_shrinkage(train.rows, train.items, total), live_calls(plan, progress)
    fared: dict[str, HeldOutScores] = {}
    for number, family in enumerate(families):
        progress("power", number, len(families))
        of = [np.array(part.items.families) == family for part in (train, calibration)]
        # Too little may be left to calibrate on, or to solve from.
        if of[0].any() and of[1].any():
            with suppress(CalibrationError, StatisticsError):
                own = train.take(of[0])
                rest = total.minus(sums_of(own.rows, own.items.families, own.items.sources, total.own))
                classes = tuple(name for name in plan.classes if name != family)
                solved = Spread(rest).discriminants(rest.means(classes), reals(classes), *shrunk)
                left = train.take(~of[0]), calibration.take(~of[1])
                unseen = own, calibration.take(of[1])
                calls = live and live.take(~of[1])
                fared[family] = _score_unseen(plan, classes, solved, left, unseen, calls)
    progress("power", len(families), len(families))
    return power_of(fared, plan.seed) if fared else None


def _score_unseen(
    plan: CandidatePlan,
    classes: tuple[str, ...],
    solved: Discriminants,
    left: tuple[Part, Part],
    unseen: tuple[Part, Part],
    live: LiveCalls | None,
) -> HeldOutScores:
    """Return how unseen items fare at a gate of these classes, of what is left to train and calibrate on."""
    known, held = left
    reference, experts = None, None
    if plan.architecture.forensic:
        places = equal_shares(np.array(known.items.families), np.array(known.items.ids), REFERENCE_ROWS)
        some = known.take(np.isin(np.arange(len(known.items)), places))
        reference = make_reference(some.output, some.items.families, some.items.ids, some.items.sources)
    of_held = held.solve(solved)
    if plan.experts:
        contracts = [expert.contract for expert in plan.experts]
        experts = calibrated_experts(contracts, held.items, of_held.logits, classes)
    # All at once, for what the scores are fitted to takes longer than scoring.
    parts = (held, *unseen)
    items = LabelledCrops.join([part.items for part in parts])
    outputs = [part.solve(solved) for part in parts]
    output = NetworkOutput(*(torch.cat(of) for of in zip(*outputs, strict=True)))
    say = experts and experts.of(items)
    measured = gate_inputs(output, reference, say, frozen=plan.architecture.frozen)
    first, last = slice(0, len(held.items)), slice(len(held.items), None)
    families, groups, sources = (np.array(of) for of in (items.families, items.groups, items.sources))
    at_held = measured.take(first), families[first], groups[first], live
    gate = fit_gate(*at_held, held.items.videos, sources[first])
    found = measured.take(last)
    unknown = unknown_scores(found, gate)
    videos = None if items.videos is None else items.videos[last]
    labels = labels_of(unknown, found.fake_probability, gate, videos, sources[last])
    return HeldOutScores(labels != REAL, unknown, groups[last], np.array(items.ids)[last])


def power_of(fared: Mapping[str, HeldOutScores], seed: int) -> Power:
    """Return the power, of how the items of each family left out fared.

    The share is the mean over families of the mean over groups. Its 95 % interval is a percentile bootstrap
    (Efron 1979) over both: families are drawn anew, and of each drawn family its groups.
    """
    rng = SeedPurpose.POWER.generator(seed)
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

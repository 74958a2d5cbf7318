"""The power of a candidate: how much of a family that it has never seen it would not call real.

Nobody has the forgeries of tomorrow, but each known family was unknown once. So each is left out in turn: its
items are subtracted from the sums of all, discriminants solved from the rest, the gate is calibrated anew,
and the family's training and calibration items are judged at the new thresholds. Where discriminants are all
that is learnt, that is a release which has never seen the family. A network of steps has, which flatters.
"""

from collections.abc import Mapping
from contextlib import suppress

import numpy as np

from detector.model.network import Network
from memory.records import REAL
from updater.candidate.calibrate import calibrate, reals
from updater.candidate.evaluate import Calls
from updater.candidate.gate_inputs import Part
from updater.candidate.gates import ITEMS_SHOWN
from updater.candidate.left_out import sums_with
from updater.candidate.plan import CandidatePlan
from updater.candidate.reference_set import CalibrationError
from updater.candidate.thresholds import LiveCalls
from updater.data.training_data import LabelledCrops
from updater.draws import SeedPurpose
from updater.progress import Progress, no_progress
from updater.records import Caught, Power
from updater.training.discriminant import Spread, choose_shrinkage
from updater.training.sums import StatisticsError, sums_of

_ROUNDS = 1000


def measure_power(
    plan: CandidatePlan,
    network: Network,
    train: Part,
    calibration: Part,
    live: LiveCalls | None,
    progress: Progress = no_progress,
) -> Power | None:
    """Leave each family of a plan out once.

    train, calibration: its items, with what the network says of them; live: as of `calibrate`. Returns None
    where there is but one family: with it left out, nothing would be known of forgery. A family without which
    the other items are too few for a gate is not left out.
    """
    families = plan.classes[1:]
    if len(families) < 2:
        return None
    total = sums_with(train, None if plan.parent is None else plan.parent.statistics)
    shrunk = choose_shrinkage(train.rows, train.items, total)
    experts = [expert.contract for expert in plan.experts]
    judged: dict[str, tuple[LabelledCrops, Calls]] = {}
    for number, family in enumerate(families):
        progress("power", number, len(families))
        of = [np.array(part.items.families) == family for part in (train, calibration)]
        # Too little may be left to calibrate on, or to solve from.
        if of[0].any() and of[1].any():
            with suppress(CalibrationError, StatisticsError):
                own, held = train.take(of[0]), calibration.take(~of[1])
                rest = total.minus(sums_of(own.rows, own.items.families, own.items.sources, total.own))
                classes = tuple(name for name in plan.classes if name != family)
                solved = Spread(rest).discriminants(rest.means(classes), reals(classes), *shrunk)
                known = train.take(~of[0]), held.solve(solved)
                calls = live and live.take(~of[1])
                judge = calibrate(network, *known, classes, experts=experts, live=calls)
                unseen = Part.join([part.solve(solved) for part in (own, calibration.take(of[1]))])
                judged[family] = unseen.items, judge.calls(unseen)
    progress("power", len(families), len(families))
    return power_of(judged, plan.seed) if judged else None


def power_of(judged: Mapping[str, tuple[LabelledCrops, Calls]], seed: int) -> Power:
    """Return the power, of the items of each family left out, and their calls.

    The share is the mean over families of the mean over groups. Its 95 % interval is a percentile bootstrap
    (Efron 1979) over both: families are drawn anew, and of each drawn family its groups.
    """
    rng = SeedPurpose.POWER.generator(seed)
    drawn = np.empty((len(judged), _ROUNDS))
    families = {}
    for row, (family, (items, calls)) in enumerate(judged.items()):
        _, of = np.unique(items.groups, return_inverse=True)
        not_real = calls.labels != REAL
        shares = np.bincount(of, not_real) / np.bincount(of)
        passed = np.flatnonzero(~not_real)
        most_familiar = passed[np.argsort(calls.unknown[passed], kind="stable")[:ITEMS_SHOWN]]
        families[family] = Caught(
            items=len(items),
            groups=len(shares),
            share=float(shares.mean()),
            passed=tuple(items.ids[place] for place in most_familiar),
        )
        counts = rng.multinomial(len(shares), np.full(len(shares), 1 / len(shares)), _ROUNDS)
        drawn[row] = counts @ shares / len(shares)
    places = rng.integers(0, len(drawn), drawn.shape)
    low, high = np.quantile(np.take_along_axis(drawn, places, 0).mean(0), [0.025, 0.975])
    share = float(np.mean([family.share for family in families.values()]))
    return Power(share=share, low=float(low), high=float(high), families=families)

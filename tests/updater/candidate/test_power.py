from dataclasses import replace

import numpy as np
import pytest
import torch

from detector.model.export import run
from detector.model.graph import DetectorGraph
from detector.model.network import Network
from detector.release.manifest import Architecture
from detector.verdicts import fake_probabilities
from ingest.records import CropPlan
from updater.candidate import power
from updater.candidate.calibrate import calibrate
from updater.candidate.evaluate import Calls, FrozenHead, batch
from updater.candidate.gate_inputs import output_of, part_of
from updater.candidate.plan import CandidatePlan
from updater.candidate.power import measure_power, power_of
from updater.data.training_data import LabelledCrops, Splits
from updater.progress import no_progress
from updater.training.crop_rows import item_features
from updater.training.discriminant import Spread, center, rows_of
from updater.training.step import FIRST
from updater.training.sums import sums_of


def fared(not_real, groups):
    n, unknown = len(not_real), -np.arange(len(not_real), dtype=np.float32)
    ids, groups = tuple(f"item-{i}" for i in range(n)), tuple(map(str, groups))
    items = LabelledCrops(ids, ids, ids, groups, np.zeros((n, 1, 1, 3), np.uint8), np.arange(n + 1))
    return items, Calls(np.where(not_real, "unknown", "real"), np.array(ids), unknown, unknown, unknown)


def test_the_share_is_the_mean_over_families_of_the_mean_over_groups():
    # Groups p, q, r of the first: 1, 0 and 0; all of the second.
    found = power_of({"a": fared([1, 1, 0, 0], "ppqr"), "b": fared([1, 1], "xy")}, seed=0)
    assert found.share == pytest.approx((1 / 3 + 1) / 2)
    assert {name: (one.items, one.groups, one.share) for name, one in found.families.items()} == {
        "a": (4, 3, pytest.approx(1 / 3)),
        "b": (2, 2, 1.0),
    }


def test_of_what_passed_the_most_familiar_are_named_first_and_not_all():
    found = power_of({"a": fared([1, 0, 0, 1], "pqrs"), "b": fared([0] * 20, range(20))}, seed=0)
    assert found.families["a"].passed == ("item-2", "item-1")
    assert found.families["b"].passed == tuple(f"item-{i}" for i in range(19, 11, -1))


def test_the_interval_is_of_families_and_not_of_items_alone():
    apart = {"a": fared([1] * 500, range(500)), "b": fared([0] * 500, range(500))}
    alike = {name: fared([1, 0] * 250, range(500)) for name in "ab"}
    assert (power_of(apart, 0).low, power_of(apart, 0).high) == (0, 1)
    assert 0.4 < power_of(alike, 0).low < 0.5 < power_of(alike, 0).high < 0.6


@pytest.fixture
def plan_of(labelled):
    """Makes the plan of a first release of these families; "twin/real" is a family twin, forged as reals."""

    def named(items):
        return replace(items, families=tuple(name.partition("/")[0] for name in items.families))

    def plan_of(*forged):
        parts = [labelled(dict.fromkeys(("real", *forged), n), seed) for seed, n in enumerate((24, 12, 12))]
        families = tuple(name.partition("/")[0] for name in forged)
        shape = {"architecture": Architecture(crop_px=64, frozen=True), "crop_plan": CropPlan(crop_px=64)}
        learnt = {"recipe": FIRST, "without": frozenset(), "seed": 0, "device": torch.device("cpu")}
        items = {"splits": Splits(*map(named, parts)), "waiting": {}, "parent": None}
        return CandidatePlan(classes=("real", *families), new=families, **shape, **learnt, **items)

    return plan_of


def network_of(plan):
    network = Network(plan.architecture, len(plan.classes)).eval()
    train = plan.splits.train
    center(network, item_features(network, train, plan.device), train.sources)
    return network


def scored(plan):
    network, sides = network_of(plan), (plan.splits.train, plan.splits.calibration)
    return network, [part_of(network, items, plan.device, "stage", no_progress) for items in sides]


def test_frozen_features_are_the_memorys_and_no_crop_is_looked_at_again(plan_of):
    plan = plan_of("blocky")
    network, items = network_of(plan), plan.splits.train
    held = item_features(network, items, plan.device)
    blank = replace(items, features=held, crops=np.zeros_like(items.crops))
    outputs = [output_of(network, one, plan.device, "stage", no_progress) for one in (items, blank)]
    assert torch.equal(outputs[0].logits, outputs[1].logits)


def test_a_head_says_of_features_what_the_graph_says_of_their_crops(plan_of):
    plan = plan_of("blocky")
    (network, parts), held = scored(plan), plan.splits.calibration
    judge = calibrate(network, *parts, plan.classes)
    whole = run(DetectorGraph(network, judge.gate, judge.reference), batch(held))
    calls = FrozenHead(network, judge).calls(held, whole["features"])
    scores = whole["unknown_score"], whole["energy"], fake_probabilities(whole["logits"])
    assert np.stack([calls.unknown, calls.energy, calls.fake]) == pytest.approx(np.stack(scores), abs=1e-4)


def measured(plan):
    return measure_power(plan, network_of(plan), *scored(plan)[1], None)


def test_a_family_that_is_left_out_is_judged_by_what_never_saw_it(plan_of, monkeypatch):
    plan, solved = plan_of("blocky", "striped"), []
    monkeypatch.setattr(power, "Spread", lambda sums: solved.append(sums) or Spread(sums))
    found = measured(plan)
    assert list(found.families) == ["blocky", "striped"]
    assert [one.items for one in found.families.values()] == [36, 36]
    network, train = network_of(plan), plan.splits.train
    for family, left in zip(found.families, solved[-2:], strict=True):
        part = train.take(np.flatnonzero(np.array(train.families) != family))
        rows = rows_of(network, item_features(network, part, plan.device))
        assert left.families == tuple(sorted({"real", "blocky", "striped"} - {family}))
        assert np.array_equal(left.moments, sums_of(rows, part.families, part.sources).moments)


def test_fakes_that_differ_from_reals_in_nothing_are_hardly_caught_and_others_are(plan_of):
    found = measured(plan_of("blocky", "striped", "twin/real"))
    assert found.families["twin"].share < 0.25
    assert found.families["blocky"].share > 0.5
    assert found.low < found.share < found.high


def test_with_a_single_family_there_is_nothing_to_leave_out(plan_of):
    assert measured(plan_of("blocky")) is None

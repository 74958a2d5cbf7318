from dataclasses import replace

import numpy as np
import pytest
import torch

from detector.model.export import run
from detector.model.graph import DetectorGraph
from detector.model.network import Network
from detector.release.manifest import Architecture, SourceThresholds
from detector.serving.session import open_session
from detector.verdicts import fake_probabilities
from ingest.records import CropPlan
from updater.candidate import power
from updater.candidate.calibrate import calibrate
from updater.candidate.evaluate import Calls, FrozenHead, GatedModel, batch, performance_of, score_items
from updater.candidate.gate_inputs import output_of, part_of
from updater.candidate.plan import CandidatePlan
from updater.candidate.power import measure_power, power_of
from updater.data.training_data import LabelledCrops, Splits
from updater.progress import no_progress
from updater.records import Performance
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
        classes = ("real", *families)
        return CandidatePlan(
            classes=classes,
            new=families,
            waiting={},
            architecture=Architecture(crop_px=64, frozen=True),
            crop_plan=CropPlan(crop_px=64),
            parent=None,
            splits=Splits(*map(named, parts)),
            recipe=FIRST,
            without=frozenset(),
            seed=0,
            device=torch.device("cpu"),
        )

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
    plan = plan_of("blocky", "striped", "twin/real")
    found = measured(plan)
    assert found.families["twin"].share < 0.25
    assert found.families["blocky"].share > 0.5
    assert found.low < found.share < found.high


def test_with_a_single_family_there_is_nothing_to_leave_out(plan_of):
    assert measured(plan_of("blocky")) is None


def items(families, seed=0):
    rng = np.random.default_rng(seed)
    counts = rng.integers(1, 4, len(families))
    return LabelledCrops(
        ids=tuple(f"item-{i}" for i in range(len(families))),
        families=tuple(families),
        sources=("test",) * len(families),
        groups=tuple(f"item-{i}" for i in range(len(families))),
        crops=rng.integers(0, 256, (counts.sum(), 64, 64, 3), dtype=np.uint8),
        starts=np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
    )


@pytest.fixture(scope="module")
def session(untrained_artifact):
    return open_session(untrained_artifact, threads=1)


def test_an_item_is_the_mean_of_its_own_crops():
    some = items(["real", "blend", "real"])
    request = batch(some)
    crops, pooling = request["crops"], request["pooling"]
    assert np.array_equal(crops, some.crops)
    values = np.arange(len(crops), dtype=np.float32)
    means = [values[a:b].mean() for a, b in zip(some.starts, some.starts[1:], strict=False)]
    assert np.allclose(pooling @ values, means)


def test_items_score_the_same_in_any_number_at_once(session):
    many = items(["real"] * 37)
    one_by_one = [session.score(batch(many.take([i])))["unknown_score"][0] for i in (0, 15, 16, 36)]
    assert np.allclose(score_items(session, many)["unknown_score"][[0, 15, 16, 36]], one_by_one, atol=1e-2)


def test_shares_are_of_each_class_and_a_family_is_named_where_called_fake(session, untrained_artifact):
    manifest = untrained_artifact.manifest
    some = items(["real"] * 9 + ["blend"] * 6 + ["upsampling"] * 5)
    judge = GatedModel(session, manifest.gate, manifest.classes)
    pseudo = judge.calls(items(["pseudo"] * 6, 1))
    calls = judge.calls(some)
    found = performance_of(some, calls, pseudo, frozenset({"real"}))
    for family, shares in found.classes.items():
        mine = np.array(some.families) == family
        assert shares.items == mine.sum()
        assert shares.real + shares.fake + shares.unknown == pytest.approx(1)
        right = calls.names == family
        assert shares.named == pytest.approx(right[mine].mean())
        assert shares.named <= (shares.real if family == "real" else shares.fake)


def test_real_videos_are_judged_by_the_threshold_of_videos(session, untrained_artifact):
    manifest, some, pseudo = untrained_artifact.manifest, items(["real"] * 12), items(["pseudo"] * 6, 1)
    unknown = score_items(session, some)["unknown_score"]
    gate = manifest.gate.model_copy(
        update={
            "unknown_threshold": float(unknown.min()) - 1,
            "video_unknown_threshold": float(unknown.max()),
        }
    )
    for videos, share in ((None, 1), (np.arange(12) < 3, 0.75)):
        given = replace(some, videos=videos)
        # Nothing is called fake, so a video between the two is real.
        judge = GatedModel(session, gate.model_copy(update={"fake_threshold": 1.0}), manifest.classes)
        found = performance_of(given, judge.calls(given), judge.calls(pseudo), frozenset({"real"}))
        assert found.classes["real"].unknown == pytest.approx(share)


def test_items_are_judged_by_the_thresholds_of_their_own_source(session, untrained_artifact):
    manifest, some, pseudo = untrained_artifact.manifest, items(["real"] * 12), items(["pseudo"] * 6, 1)
    own = SourceThresholds(groups=20, unknown_threshold=-99, fake_threshold=1)
    gate = manifest.gate.model_copy(
        update={"unknown_threshold": 99, "fake_threshold": 1, "sources": {"camera": own}}
    )
    judge = GatedModel(session, gate, manifest.classes)
    given = replace(some, sources=("camera",) * 3 + ("other",) * 9)
    assert (
        performance_of(given, judge.calls(given), judge.calls(pseudo), frozenset({"real"}))
        .classes["real"]
        .unknown
        == 0.25
    )
    assert judge.calls(given).right(given).tolist() == [False] * 3 + [True] * 9


def test_the_confusion_counts_every_item_once_and_its_diagonal_is_what_is_named(session, untrained_artifact):
    manifest = untrained_artifact.manifest
    some = items(["real"] * 9 + ["blend"] * 6 + ["pixelated"] * 5)
    judge = GatedModel(session, manifest.gate, manifest.classes)
    calls = judge.calls(some)
    found = performance_of(some, calls, judge.calls(items(["pseudo"] * 6, 1)), frozenset({"real"}))
    assert {name: sum(called.values()) for name, called in found.confusion.items()} == {
        "real": 9,
        "blend": 6,
        "pixelated": 5,
    }
    right = sum(called.get(name, 0) for name, called in found.confusion.items())
    assert right == calls.correctly_named(some).sum()
    assert {name for called in found.confusion.values() for name in called} <= {*manifest.classes, "unknown"}


def test_the_curve_of_rejection_has_its_area_and_goes_through_what_is_rejected(session, untrained_artifact):
    manifest = untrained_artifact.manifest
    some, pseudo = items(["real"] * 30), items(["pseudo"] * 30, 1)
    gate = manifest.gate.model_copy(update={"unknown_threshold": 1.0})
    judge = GatedModel(session, gate, manifest.classes)
    calls, of_pseudo = judge.calls(some), judge.calls(pseudo)
    found = performance_of(some, calls, of_pseudo, frozenset({"real"}))
    assert np.trapezoid(*reversed(np.transpose(found.rejection_roc))) == pytest.approx(found.rejection_auroc)
    assert found.rejected == ((calls.unknown > 1).mean(), (of_pseudo.unknown > 1).mean())
    again = Performance.model_validate_json(found.model_dump_json())
    assert again == found
    assert performance_of(some, calls, of_pseudo, frozenset()).rejected is None


def test_rejection_is_measured_against_familiar_classes_with_forged_as_positive(session, untrained_artifact):
    manifest = untrained_artifact.manifest
    some = items(["real"] * 6 + ["blend"] * 6)
    scored = score_items(session, some)
    for familiar in ({"real"}, {"real", "blend"}):
        judge = GatedModel(session, manifest.gate, manifest.classes)
        found = performance_of(some, judge.calls(some), judge.calls(some), frozenset(familiar))
        for name, area in (
            ("unknown_score", found.rejection_auroc),
            ("energy", found.rejection_energy_auroc),
        ):
            mine = scored[name][np.isin(some.families, list(familiar))]
            pairs = [(a > b) + 0.5 * (a == b) for a in scored[name] for b in mine]
            assert area == pytest.approx(np.mean(pairs), abs=0.03)

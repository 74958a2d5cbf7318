from dataclasses import replace

import numpy as np
import pytest

from detector.release.manifest import SourceThresholds
from detector.serving.session import open_session
from updater.candidate.evaluate import GatedModel, batch, performance_of, score_items
from updater.data.training_data import LabelledCrops
from updater.records import Performance


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
    for family, shares in performance_of(some, calls, pseudo, frozenset({"real"})).classes.items():
        mine = np.array(some.families) == family
        assert shares.items == mine.sum()
        assert shares.real + shares.fake + shares.unknown == pytest.approx(1)
        assert shares.named == pytest.approx((calls.names == family)[mine].mean())
        assert shares.named <= (shares.real if family == "real" else shares.fake)


def test_real_videos_are_judged_by_the_threshold_of_videos(session, untrained_artifact):
    manifest, some, pseudo = untrained_artifact.manifest, items(["real"] * 12), items(["pseudo"] * 6, 1)
    unknown = score_items(session, some)["unknown_score"]
    own = {"unknown_threshold": float(unknown.min()) - 1, "video_unknown_threshold": float(unknown.max())}
    gate = manifest.gate.model_copy(update=own)
    for videos, share in ((None, 1), (np.arange(12) < 3, 0.75)):
        given = replace(some, videos=videos)
        # Nothing is called fake, so a video between the two is real.
        judge = GatedModel(session, gate.model_copy(update={"fake_threshold": 1.0}), manifest.classes)
        found = performance_of(given, judge.calls(given), judge.calls(pseudo), frozenset({"real"}))
        assert found.classes["real"].unknown == pytest.approx(share)


def test_items_are_judged_by_the_thresholds_of_their_own_source(session, untrained_artifact):
    manifest, some, pseudo = untrained_artifact.manifest, items(["real"] * 12), items(["pseudo"] * 6, 1)
    own = SourceThresholds(groups=20, unknown_threshold=-99, fake_threshold=1)
    pooled = {"unknown_threshold": 99, "fake_threshold": 1}
    gate = manifest.gate.model_copy(update=pooled | {"sources": {"camera": own}})
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
    judge = GatedModel(session, manifest.gate.model_copy(update={"unknown_threshold": 1.0}), manifest.classes)
    calls, of_pseudo = judge.calls(some), judge.calls(pseudo)
    found = performance_of(some, calls, of_pseudo, frozenset({"real"}))
    assert np.trapezoid(*reversed(np.transpose(found.rejection_roc))) == pytest.approx(found.rejection_auroc)
    assert found.rejected == ((calls.unknown > 1).mean(), (of_pseudo.unknown > 1).mean())
    assert Performance.model_validate_json(found.model_dump_json()) == found
    assert performance_of(some, calls, of_pseudo, frozenset()).rejected is None


def test_rejection_is_measured_against_familiar_classes_with_forged_as_positive(session, untrained_artifact):
    manifest = untrained_artifact.manifest
    some = items(["real"] * 6 + ["blend"] * 6)
    scored = score_items(session, some)
    for familiar in ({"real"}, {"real", "blend"}):
        judge = GatedModel(session, manifest.gate, manifest.classes)
        found = performance_of(some, judge.calls(some), judge.calls(some), frozenset(familiar))
        areas = {"unknown_score": found.rejection_auroc, "energy": found.rejection_energy_auroc}
        for name, area in areas.items():
            mine = scored[name][np.isin(some.families, list(familiar))]
            pairs = [(a > b) + 0.5 * (a == b) for a in scored[name] for b in mine]
            assert area == pytest.approx(np.mean(pairs), abs=0.03)


def test_the_recall_of_declared_forgeries_is_measured(session, untrained_artifact):
    manifest, some = untrained_artifact.manifest, items(["real"] * 4 + ["blend"] * 8)
    judge = GatedModel(session, manifest.gate, manifest.classes)
    calls, pseudo = judge.calls(some), judge.calls(items(["pseudo"] * 6, 1))
    assert performance_of(some, calls, pseudo, frozenset({"real"})).declared is None
    some = replace(some, declared=np.arange(12) % 2 == 0)  # a real one that declares it is a person's word
    calls = replace(calls, labels=np.array(["real"] * 6 + ["unknown", "fake"] * 3))
    found = performance_of(some, calls, pseudo, frozenset({"real"})).declared
    assert (found.caught, found.items) == (3, 4)

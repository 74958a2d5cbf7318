"""Measures and whitenings against figures worked out by hand, and the laws that they keep."""

import math
import time
from datetime import UTC, datetime

import numpy as np
import pynvml
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from scipy.stats import binomtest
from sklearn.metrics import roc_auc_score
from sqlalchemy import create_engine

from updater import draws
from updater.draws import SeedPurpose
from updater.gpus import devices
from updater.intervals import CONFIDENCE, difference_interval, share_interval
from updater.measures import (
    auroc,
    auroc_interval,
    balanced_weights,
    conformal_bound,
    may_exceed,
    part_whitening,
    roc_points,
    weighted_quantile,
    within_class_whitening,
)
from updater.metrics import REGISTRY, Runs
from updater.records import NOT_LET_IN
from updater.runs import RunTable

SCORES = st.lists(st.integers(-4, 4), min_size=1, max_size=30)


@given(SCORES, SCORES)
def test_auroc_agrees_with_scikit_learn_ties_and_all(positive, negative):
    truth = [1] * len(positive) + [0] * len(negative)
    assert auroc(positive, negative) == pytest.approx(roc_auc_score(truth, positive + negative))


@given(SCORES, SCORES)
def test_a_short_curve_has_the_area_of_its_scores(positive, negative):
    points = roc_points(positive, negative, 200)
    assert np.trapezoid(points[:, 1], points[:, 0]) == pytest.approx(auroc(positive, negative))


def test_a_thinned_curve_keeps_its_ends_and_nearly_its_area():
    rng = np.random.default_rng(0)
    positive, negative = rng.normal(1, 1, 5000), rng.normal(0, 1, 700)
    points = roc_points(positive, negative, 50)
    assert len(points) <= 50
    assert points[0].tolist() == [0, 0]
    assert points[-1].tolist() == [1, 1]
    assert (np.diff(points, axis=0) >= 0).all()
    assert np.trapezoid(points[:, 1], points[:, 0]) == pytest.approx(auroc(positive, negative), abs=0.002)
    assert roc_points([], [1.0], 50).shape == (0, 2)


def test_nothing_to_compare_is_not_a_number():
    assert math.isnan(auroc([], [1.0]))
    assert math.isnan(auroc([1.0], []))


@given(scores=st.lists(st.floats(-9, 9), min_size=1, max_size=120), share=st.sampled_from([0.02, 0.05, 0.2]))
def test_few_enough_exceed_a_conformal_bound_and_no_lower_score_would_do(scores, share):
    bound, values = conformal_bound(scores, share), np.array(scores)
    assert (values > bound).sum() <= may_exceed(len(scores), share)
    lower = values[values < bound]
    assert not len(lower) or (values > lower.max()).sum() > may_exceed(len(scores), share)


@given(st.lists(st.floats(-9, 9), min_size=1, max_size=40), st.floats(0.01, 1))
def test_equal_weights_give_the_ordinary_quantile(values, share):
    expected = np.quantile(values, share, method="inverted_cdf")
    assert weighted_quantile(values, np.ones(len(values)), share) == expected


def test_a_weight_counts_as_so_many_copies():
    assert weighted_quantile([3, 1, 2], [1, 7, 2], 0.7) == 1
    assert weighted_quantile([3, 1, 2], [1, 7, 2], 0.71) == 2


def test_balanced_weights_make_every_name_equal():
    weights = balanced_weights(["a", "a", "a", "b"])
    assert weights.sum() == pytest.approx(1)
    assert weights[:3].sum() == pytest.approx(weights[3])


def test_the_groups_of_a_name_share_its_weight():
    names, groups = ["a", "a", "a", "a", "b", "b"], ["x", "x", "x", "y", "x", "z"]
    assert balanced_weights(names, groups) == pytest.approx([1 / 12] * 3 + [1 / 4] + [1 / 4] * 2)


FAMILIES = np.array(["real"] * 4000 + ["blended"] * 2000)


def rows():
    rng = np.random.default_rng(0)
    mixing = np.eye(6) + 0.3 * rng.normal(size=(6, 6))
    return (rng.normal(size=(6000, 6)) @ mixing + np.where(FAMILIES == "real", 0, 5)[:, None]).astype("f")


def within(values):
    """Return the covariance about each family's own mean."""
    centred = values.astype(np.float64)
    for family in set(FAMILIES):
        centred[family == FAMILIES] -= centred[family == FAMILIES].mean(0)
    return centred.T @ centred / len(centred)


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_a_direction_of_variance_v_is_left_with_v_to_the_rest_of_the_share(share):
    before = within(rows())
    scale = np.sqrt(np.diag(before))
    mean, matrix = part_whitening(rows(), FAMILIES, share)
    after = within((rows() - mean) @ matrix)
    values, vectors = np.linalg.eigh(before / np.outer(scale, scale))
    # The shrinkage of the estimate moves the smallest variances a little.
    assert vectors.T @ after @ vectors == pytest.approx(np.diag(values ** (1 - share)), abs=0.06)


def test_all_the_way_is_the_whitening_but_for_a_rotation():
    _, part = part_whitening(rows(), FAMILIES, 1.0)
    _, whole = within_class_whitening(rows(), FAMILIES)
    assert part @ part.T == pytest.approx(whole @ whole.T, rel=1e-3, abs=1e-4)


def test_items_that_are_all_alike_whiten_to_nothing_that_is_infinite():
    rows = np.full((12, 5), 3.0, np.float32)
    mean, whitening = within_class_whitening(rows, np.array(["real"] * 12))
    assert np.isfinite(whitening).all()
    assert not ((rows - mean) @ whitening).any()


def test_no_two_streams_of_an_update_share_their_numbers():
    numbers = [one.value[0] for one in SeedPurpose if not one.value[1].startswith("benchmark")]
    assert len(numbers) == len(set(numbers))


def test_a_stream_draws_the_same_for_the_same_place_and_other_numbers_for_another():
    def first(stream, *place):
        return stream.generator(*place).random()

    assert first(SeedPurpose.BATCHES, 3, 0, 7) == np.random.default_rng([3, 3, 0, 7]).random()
    drawn = {
        first(stream, seed, number)
        for stream in (SeedPurpose.BATCHES, SeedPurpose.FORGERIES)
        for seed in (0, 1)
        for number in (0, 1)
    }
    assert len(drawn) == 8


def test_draws_by_running_sums_are_those_by_chances():
    chances = np.random.default_rng(0).random(1000) ** 3
    chances /= chances.sum()
    one, other = np.random.default_rng(5), np.random.default_rng(5)
    assert np.array_equal(draws.draw(one, draws.cumulative(chances), 500), other.choice(1000, 500, p=chances))
    assert one.random() == other.random()


def test_the_interval_of_an_auroc_holds_it_as_often_as_it_says():
    rng, held = np.random.default_rng(0), 0
    truth = 0.760  # of two normal distributions one standard deviation apart
    for _ in range(400):
        low, high = auroc_interval(auroc(rng.normal(1, 1, 40), rng.normal(0, 1, 60)), 40, 60)
        held += low <= truth <= high
    assert 0.92 < held / 400 < 0.98


groups = st.integers(1, 500)
shares = st.floats(0, 1)


@given(st.integers(1, 200), st.data())
def test_of_whole_groups_it_is_scipy_s_exact_interval(count, data):
    right = data.draw(st.integers(0, count))
    theirs = binomtest(right, count).proportion_ci(1 - 2 * (1 - CONFIDENCE), "exact")
    assert share_interval(right / count, count) == pytest.approx((theirs.low, theirs.high), abs=1e-6)


@given(shares, groups)
def test_the_share_lies_in_its_interval_and_more_groups_narrow_it(share, count):
    low, high = share_interval(share, count)
    assert 0 <= low <= share + 1e-9
    assert share - 1e-9 <= high <= 1
    narrow_low, narrow_high = share_interval(share, 4 * count)
    assert narrow_high - narrow_low <= high - low + 1e-9


@given(st.lists(st.tuples(st.tuples(shares, groups), st.tuples(shares, groups)), min_size=1, max_size=5))
def test_what_is_lost_one_way_is_gained_the_other(pairs):
    before, after = zip(*pairs, strict=True)
    low, high = difference_interval(before, after)
    assert (-high, -low) == pytest.approx(difference_interval(after, before), abs=1e-9)
    assert low <= sum(b - a for (b, _), (a, _) in pairs) / len(pairs) <= high


def test_a_loss_that_is_none_is_outside_in_at_most_one_of_twenty_on_either_side():
    """Oracle: 2,000 draws of two shares of three families, all truly .3, of 25 groups each."""
    import numpy as np

    drawn = np.random.default_rng(0).binomial(25, 0.3, (2000, 2, 3)) / 25
    ends = [difference_interval([(s, 25) for s in b], [(s, 25) for s in a]) for b, a in drawn]
    assert np.mean([low > 0 for low, _ in ends]) < 0.06
    assert np.mean([high < 0 for _, high in ends]) < 0.06


@pytest.fixture
def table(either_database):
    engine = create_engine(either_database)
    yield RunTable(engine, lease_s=60, max_takeovers=2)
    engine.dispose()


def run_to(table, slot, state):
    table.request(slot, "manual", "ada")
    table.finish(table.claim("runner"), state)


def ended(registry, state):
    return registry.get_sample_value("forgewatch_updater_run_ended_timestamp_seconds", {"state": state})


def test_runs_and_when_the_latest_ended_are_what_the_database_says_when_asked(table):
    registry = CollectorRegistry()
    registry.register(Runs(table))
    assert registry.get_sample_value("forgewatch_updater_runs", {"state": "running"}) == 0
    assert ended(registry, "proposed") is None
    before = datetime.now(UTC).timestamp()
    for slot in ("1", "2"):
        run_to(table, slot, "refused")
    run_to(table, "3", "proposed")
    table.request("4", "manual", "ada")
    table.claim("runner")
    assert registry.get_sample_value("forgewatch_updater_runs", {"state": "running"}) == 1
    assert registry.get_sample_value("forgewatch_updater_runs", {"state": "refused"}) == 2
    assert before <= ended(registry, "refused") <= ended(registry, "proposed") <= time.time()
    assert ended(registry, "failed") is None


def test_an_update_that_waits_for_a_token_is_shown_until_it_is_taken_up_again(table):
    registry = CollectorRegistry()
    registry.register(Runs(table))
    table.request("1", "manual", "ada")
    for error, shown in ((None, 0), ("waits: deploy does not answer", 0), (f"waits: {NOT_LET_IN}", 1)):
        table.release(table.claim("runner"), error=error)
        assert registry.get_sample_value("forgewatch_updater_token_refused") == shown
    table.claim("runner")
    assert registry.get_sample_value("forgewatch_updater_token_refused") == 0


def test_a_database_that_is_gone_costs_the_samples_and_not_the_scrape(tmp_path):
    engine = create_engine(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    registry = CollectorRegistry()
    registry.register(Runs(RunTable(engine, lease_s=60, max_takeovers=2)))
    engine.dispose()
    (tmp_path / "runs.sqlite").write_bytes(b"no database" * 1000)
    assert registry.get_sample_value("forgewatch_updater_runs", {"state": "running"}) is None


def test_the_updaters_own_registry_says_how_its_process_does():
    assert 0 < time.time() - REGISTRY.get_sample_value("process_start_time_seconds") < 86_400
    assert REGISTRY.get_sample_value("process_resident_memory_bytes") > 2**20


def has_driver():
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    pynvml.nvmlShutdown()
    return True


@pytest.mark.skipif(has_driver(), reason="this host has NVIDIA's driver")
def test_a_host_without_the_driver_has_no_gpu_metrics():
    assert devices() == []


@pytest.mark.skipif(not has_driver(), reason="this host has no NVIDIA GPU")
def test_each_gpu_shows_its_memory_and_its_use():
    registry = CollectorRegistry()
    (gpus,) = devices()
    registry.register(gpus)
    total = registry.get_sample_value("forgewatch_updater_gpu_memory_total_bytes", {"gpu": "0"})
    used = registry.get_sample_value("forgewatch_updater_gpu_memory_used_bytes", {"gpu": "0"})
    assert 2**30 < total < 2**40
    assert 0 <= used <= total
    assert 0 <= registry.get_sample_value("forgewatch_updater_gpu_utilization_ratio", {"gpu": "0"}) <= 1
    absent = {"gpu": str(pynvml.nvmlDeviceGetCount())}
    assert registry.get_sample_value("forgewatch_updater_gpu_memory_total_bytes", absent) is None

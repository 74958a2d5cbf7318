import json
import math

import drift_power
import numpy as np
import pytest
import shift_bursts
import shift_power
from memory_costs import costs_json, generated, measure_all

from detector.release.manifest import FEATURE_WIDTH


@pytest.mark.slow
def test_both_kinds_of_data_are_measured_at_each_size_and_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    said: list[tuple[str, int, int]] = []
    found = list(measure_all([300, 600], 0, lambda *at: said.append(at)))
    assert [(one.items, one.kind) for one in found] == [
        (300, "clustered"),
        (300, "spread"),
        (600, "clustered"),
        (600, "spread"),
    ]
    assert all(one.recall > 0.99 for one in found)  # of vectors in fp16
    assert all(min(one.add_s, one.search_s, one.build_s, one.start_s) > 0 for one in found)
    assert all(one.snapshot_bytes > one.items * FEATURE_WIDTH * 2 for one in found)
    assert said[0] == ("clustered, rows", 300, 300)
    assert list(tmp_path.iterdir()) == []
    assert json.loads(costs_json(found, 0))["sizes"][3]["items"] == 600


@pytest.mark.slow
def test_generated_features_follow_from_the_seed_and_kinds_stand_apart():
    np.testing.assert_array_equal(generated("clustered", 7)(20), generated("clustered", 7)(20))
    spread, clustered = (generated(kind, 1)(400) for kind in ("spread", "clustered"))
    assert _nearest(clustered) < 0.8 * _nearest(spread) * clustered.std() / spread.std()


def _nearest(rows: np.ndarray) -> float:
    between = np.linalg.norm(rows[:, None] - rows[None], axis=2)
    np.fill_diagonal(between, np.inf)
    return float(np.median(between.min(1)))


def test_what_shifts_further_takes_fewer_items_and_the_closed_form_is_dprime_squared():
    found = list(shift_power.measure(200, 6, 0, (1.0,), (0.7, 0.9), lambda *at: None))
    # At 0.90 d' is sqrt(2) * 1.2816 = 1.812, so (4 / 1.812) ** 2 = 4.87; at 0.70 it is 0.7416.
    assert [round(one.closed_form, 1) for one in found] == [29.1, 4.9]
    weak, strong = found
    assert strong.median < weak.median
    assert strong.low <= strong.median <= strong.high
    assert json.loads(shift_power.shift_json(found, [], [], [], 200, 6, 0))["power"][1]["item_auc"] == 0.9


def test_streams_without_an_alarm_are_null_in_the_report():
    none = shift_power.Power(0.1, 0.6, 1250.0, 700.0, math.inf, math.inf)
    row = json.loads(shift_power.shift_json([none], [], [], [], 200, 6, 0))["power"][0]
    assert (row["low"], row["median"], row["high"]) == (700.0, None, None)


@pytest.mark.slow
def test_the_smaller_the_forged_share_the_more_items_it_takes():
    shares = (1.0, 0.3, 0.1)
    all_forged, some, few = shift_power.measure(600, 8, 0, shares, (0.9,), lambda *at: None)
    assert all_forged.median < some.median < few.median
    # A tenth is shifted by 0.181 on average, so (4 / 0.181) ** 2 = 487.
    assert few.closed_form == pytest.approx(487, abs=1)


def test_bursts_of_scores_are_correlated_within_and_only_there(monkeypatch):
    scores = shift_bursts.in_bursts(60_000, 6, 0.5, np.random.default_rng(0))
    assert scores.std() == pytest.approx(1, abs=0.02)
    # Of neighbours five of six are of one burst; of items three apart, three of six.
    for lag, of_one_burst in ((1, 5 / 6), (3, 3 / 6), (6, 0)):
        lagged = np.corrcoef(scores[:-lag], scores[lag:])[0, 1]
        assert lagged == pytest.approx(0.5 * of_one_burst, abs=0.02)
    monkeypatch.setattr(shift_bursts, "BURSTS", ((20, 0.5),))
    monkeypatch.setattr(shift_bursts, "ITEMS", 150)
    (found,) = shift_bursts.measure(4, 0, lambda *at: None)
    assert (found.alarms, found.low) == (0, 0.0)
    assert found.high == pytest.approx(1 - 0.025**0.25)  # Clopper and Pearson where none of four did


@pytest.mark.slow
def test_a_drift_by_more_takes_fewer_items_either_way_and_later_tests_take_longer(monkeypatch):
    monkeypatch.setattr(drift_power, "SHIFTS", (-1.0, 2.0))
    monkeypatch.setattr(drift_power, "NUMBERS", (1, 200))
    first_low, first_high, later_low, later_high = drift_power.drift_power(300, 6, 0, lambda *at: None)
    assert first_high.median < first_low.median < later_low.median < math.inf
    assert first_high.within_100 == later_high.within_100 == 1
    report = json.loads(shift_power.shift_json([], [], [first_low], [], 300, 6, 0))
    assert report["drift_power"][0]["shift"] == -1


def test_bursts_without_a_drift_are_counted(monkeypatch):
    monkeypatch.setattr(drift_power, "ITEMS", 300)
    monkeypatch.setattr(drift_power, "SEEDS", 2)
    monkeypatch.setattr(drift_power, "BURSTS", ((6, 0.5),))
    monkeypatch.setattr(drift_power, "MOST", 200)
    long, bursts = drift_power.false_drifts(3, 0, lambda *at: None)
    assert (long.items, long.streams, long.alarms) == (300, 2, 0)
    assert (bursts.items, bursts.streams, bursts.alarms, bursts.length) == (200, 3, 0, 6)

import json

import numpy as np
import pytest
from makers import make_run, values

from updater.benchmark.report.report import report_json
from updater.benchmark.report.results import (
    Figures,
    Power,
    RejectionScores,
    WithinSource,
    measure_within,
)
from updater.benchmark.report.run_folder import Run


def test_fakes_stand_against_the_reals_of_their_own_source_and_against_no_others():
    # Against all known media the fakes would look perfectly new: so does their source.
    nothing = np.zeros(0, np.float32)
    own_reals, fakes = np.array([5, 7], np.float32), np.array([6, 8, 4, 9], np.float32)
    found = measure_within(RejectionScores(np.zeros(9, np.float32), fakes, own_reals, nothing, nothing))
    assert found.auc == pytest.approx((1 + 2 + 0 + 2) / 8)
    assert found.caught_at_5 == pytest.approx(2 / 4)  # those above 7, below which 95 % of two reals lie


def run(seed: int, power: float) -> Run:
    within = WithinSource(auc=0.6 + seed / 10, caught_at_5=0.2)
    return make_run(
        seed,
        Figures(within_source=within, lone_source_auc=0.8, power=Power(share=power, low=0, high=1)),
        rejection_within_source={"fused": values(within)},
        drawn={"power.share": tuple(np.linspace(power - 0.1, power + 0.1, 1001))},
    )


def test_the_report_has_them_with_the_interval_of_the_mean_power_over_the_seeds():
    told = json.loads(report_json([run(0, 0.4), run(1, 0.5)]))
    assert told["within_source"] == {"auc": pytest.approx(0.65), "caught_at_5": pytest.approx(0.2)}
    assert told["lone_source_auc"] == pytest.approx(0.8)
    assert told["power"] == pytest.approx({"share": 0.45, "low": 0.355, "high": 0.545})
    assert told["sd"]["within_source"]["auc"] == pytest.approx(0.1 / 2**0.5)
    assert told["each"][1]["rejection_within_source"]["fused"]["auc"] == pytest.approx(0.7)


def test_a_run_without_families_left_out_has_none_of_them():
    told = json.loads(report_json([make_run(0, Figures())]))
    assert told["power"] == Power().model_dump()
    assert told["within_source"] == WithinSource().model_dump()

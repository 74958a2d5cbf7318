import numpy as np

from updater.benchmark import estimate_coverage
from updater.benchmark.estimate_coverage import measure


def test_under_drift_only_the_audit_holds_what_is_right_and_the_alarm_is_up(monkeypatch):
    cases = {case: estimate_coverage.CASES[case] for case in ("calibrated", "30 % forged")}
    monkeypatch.setattr(estimate_coverage, "CASES", cases)
    found = {(c.case, c.by): c for c in measure(6, 400, 0, lambda *_: None) if c.of == "all"}
    assert found["calibrated", "probabilities"].covered >= 5
    assert (found["30 % forged", "probabilities"].covered, found["30 % forged", "probabilities"].alarms) == (
        0,
        6,
    )
    assert found["calibrated", "audit"].always == found["30 % forged", "audit"].always == 6
    assert np.isfinite(found["30 % forged", "audit"].half_width)

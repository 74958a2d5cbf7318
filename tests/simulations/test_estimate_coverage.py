import estimate_coverage
from estimate_coverage import measure


def test_under_drift_only_the_audit_holds_what_is_right_and_the_alarm_is_up(monkeypatch):
    cases = {case: estimate_coverage.CASES[case] for case in ("calibrated", "30 % forged")}
    monkeypatch.setattr(estimate_coverage, "CASES", cases)
    found = {(c.case, c.by): c for c in measure(6, 400, 0, lambda *_: None) if c.of == "all"}
    healthy, drifted = (found[case, "probabilities"] for case in cases)
    assert (healthy.covered, healthy.alarms) == (6, 0)
    assert drifted.covered == 0
    assert drifted.alarms >= 4
    assert all(found[case, "audit"].always == 6 for case in cases)

from estimate_coverage import CASES, measure


def test_a_stated_interval_holds_what_is_right_of_unseen_sources_and_under_drift_too():
    found = list(measure(10, 400, 0, lambda *_: None))
    assert {c.case for c in found} == set(CASES)
    assert sum(c.covered for c in found) >= 0.9 * sum(c.stated for c in found)
    assert all(c.covered >= 0.9 * c.stated for c in found if c.of == "all")
    few = [c for c in measure(10, 12, 0, lambda *_: None) if c.of != "all"]
    assert sum(c.stated for c in few) == 0, "of a dozen labelled items no share is told"

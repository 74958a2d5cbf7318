import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from updater.candidate import gates
from updater.records import Caught, Lost, Power, Robustness
from updater.settings import UpdaterSettings

shares = st.floats(0, 1)


def power_of(**families):
    caught = {name: Caught(items=20, share=share) for name, share in families.items()}
    return Power(share=sum(families.values()) / len(families), low=0, high=1, families=caught)


def robustness_of(lost):
    """What the gate looks at: by how much a candidate fell; None of a live release."""
    return Robustness(items={}, undistorted={}, distorted={}, lost=lost)


def lost_by(points):
    return Lost(share=points / 100, low=points / 100, high=points / 100, reals=80, forgeries=80)


def test_forgetting_is_the_mean_loss_in_points_over_the_old_families_alone():
    before = {"blend": 0.90, "inpaint": 0.80}
    after = {"blend": 0.80, "inpaint": 0.84, "sharpen": 0.10}
    gate = gates.forgets(before, after, 5)
    assert gate.value == pytest.approx(3.0)
    assert gate.holds


def test_exactly_five_points_forgotten_hold_and_one_hundredth_more_does_not():
    assert gates.forgets({"blend": 0.90}, {"blend": 0.85}, 5).holds
    assert not gates.forgets({"blend": 0.90}, {"blend": 0.8499}, 5).holds


def test_a_candidate_that_no_longer_knows_an_old_family_is_an_error_and_no_pass():
    with pytest.raises(KeyError):
        gates.forgets({"blend": 0.9}, {"sharpen": 0.9}, 5)


def test_no_old_family_is_an_error_and_no_pass():
    with pytest.raises(ValueError, match="nothing to forget"):
        gates.forgets({}, {"sharpen": 0.9}, 5)


def test_what_was_not_measured_never_holds():
    for gate in (gates.at_most("reals unknown", math.nan, 0.06), gates.at_least("named", math.nan, 0.6)):
        assert not gate.holds
    (power,) = gates.keeps_power(power_of(blend=0.8), None, 10)
    assert not power.holds
    assert not gates.forgets({"blend": math.nan}, {"blend": 0.9}, 5).holds


def test_power_may_fall_by_its_bound_and_may_rise_freely():
    (falls,) = gates.keeps_power(power_of(blend=0.5), power_of(blend=0.4), 10)
    (falls_further,) = gates.keeps_power(power_of(blend=0.5), power_of(blend=0.3999), 10)
    (rises,) = gates.keeps_power(power_of(blend=0.6), power_of(blend=0.9), 10)
    assert falls.holds
    assert not falls_further.holds
    assert rises.value == pytest.approx(-30)


def test_power_is_compared_on_the_families_that_both_left_out_since_one_more_may_be_harder():
    (gate,) = gates.keeps_power(
        power_of(blend=0.5, sharpen=0.7), power_of(blend=0.4, sharpen=0.8, inpaint=0.0), 5
    )
    assert gate.value == pytest.approx(0)
    (nothing,) = gates.keeps_power(power_of(blend=0.5), power_of(sharpen=0.5), 5)
    assert not nothing.holds


def test_a_live_release_whose_power_is_not_known_has_no_power_to_lose():
    assert gates.keeps_power(None, power_of(blend=0.1), 5) == ()


def test_what_is_lost_under_distortions_counts_as_far_as_it_is_beyond_chance_and_the_gate_says_of_how_many():
    live, after = (
        robustness_of(None),
        robustness_of(Lost(share=0.081, low=0.05, high=0.112, reals=80, forgeries=72)),
    )
    (gate,) = gates.keeps_robustness(live, after, 5)
    assert (gate.value, gate.holds) == (5.0, True)
    assert gate.measured == "8.1 [5.0 to 11.2] of 80 real and 72 forged items"
    assert gate.said(".3f") == "5.000 (8.1 [5.0 to 11.2] of 80 real and 72 forged items)"
    (further,) = gates.keeps_robustness(live, after, 4.99)
    assert not further.holds


def test_robustness_that_was_measured_of_live_alone_does_not_hold():
    for after in (None, robustness_of(None)):
        (gate,) = gates.keeps_robustness(robustness_of(None), after, 5)
        assert not gate.holds
    assert gates.keeps_robustness(None, robustness_of(None), 5) == ()


def test_a_candidate_that_distortions_mislead_more_than_the_live_release_misses_that_gate_alone(
    make_evaluation,
):
    evaluation = make_evaluation(("real", "blend", "gan"), "a" * 64, ("real", "blend"))
    parts = [
        one.model_copy(update={"robustness": robustness_of(lost)})
        for one, lost in ((evaluation.before, None), (evaluation.after, lost_by(10)))
    ]
    made = gates.make_gates(UpdaterSettings(), evaluation.classes, evaluation.new, *parts)
    (missed,) = [gate.name for gate in made if not gate.holds]
    assert missed == "points of accuracy lost under distortions, beyond chance"
    generous = UpdaterSettings(max_robustness_points=10)
    assert all(gate.holds for gate in gates.make_gates(generous, evaluation.classes, evaluation.new, *parts))


def test_each_new_family_has_a_gate_of_its_own_so_that_a_good_one_cannot_hide_a_bad_one():
    good, bad = gates.names({"sharpen": 0.95, "blend": 0.30}, 0.6)
    assert good.holds
    assert not bad.holds
    assert "blend" in bad.name


@given(st.dictionaries(st.text(min_size=1), st.tuples(shares, shares), min_size=1), st.floats(-100, 100))
def test_a_gate_holds_exactly_where_its_own_value_and_bound_say_so(families, bound):
    before = {name: pair[0] for name, pair in families.items()}
    after = {name: pair[1] for name, pair in families.items()}
    gate = gates.forgets(before, after, bound)
    assert gate.holds == (gate.value <= gate.bound)
    assert gate.value == pytest.approx(-gates.forgets(after, before, bound).value, abs=1e-6)

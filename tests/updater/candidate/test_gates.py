import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from updater.candidate import gates
from updater.records import Caught, Power, Robustness
from updater.settings import UpdaterSettings

shares = st.floats(0, 1)


def power_of(**families):
    caught = {name: Caught(items=20, share=share) for name, share in families.items()}
    return Power(share=sum(families.values()) / len(families), low=0, high=1, families=caught)


def robustness_of(**steps):
    """Shares by class under each step, beside which nothing of an undistorted item counts."""
    return Robustness(items={}, undistorted={"real": 0, "blend": 0}, distorted=steps)


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


def test_what_is_lost_under_distortions_is_the_mean_over_them_of_reals_and_known_families_alike():
    before = robustness_of(
        CS={"real": 0.9, "blend": 0.8, "gan": 0.6, "new": 0.0}, GB={"real": 0.5, "blend": 0.5, "gan": 0.5}
    )
    after = robustness_of(
        CS={"real": 0.8, "blend": 0.8, "gan": 0.6, "new": 1.0}, GB={"real": 0.5, "blend": 0.4, "gan": 0.4}
    )
    (gate,) = gates.keeps_robustness(before, after, ["blend", "gan"], 5)
    assert gate.value == pytest.approx(5.0)
    assert gate.holds
    (further,) = gates.keeps_robustness(before, after, ["blend", "gan"], 4.99)
    assert not further.holds


def test_robustness_that_was_measured_of_live_alone_or_under_other_distortions_does_not_hold():
    live, other = robustness_of(CS={"real": 0.1, "blend": 0.1}), robustness_of(GB={"real": 1, "blend": 1})
    for after in (None, other):
        (gate,) = gates.keeps_robustness(live, after, ["blend"], 5)
        assert not gate.holds
    assert gates.keeps_robustness(None, other, ["blend"], 5) == ()


def test_a_candidate_that_distortions_mislead_more_than_the_live_release_misses_that_gate_alone(
    make_evaluation,
):
    evaluation = make_evaluation(("real", "blend", "gan"), "a" * 64, ("real", "blend"))
    parts = [
        one.model_copy(update={"robustness": robustness_of(CS={"real": 0.9, "blend": share, "gan": 0.9})})
        for one, share in ((evaluation.before, 0.9), (evaluation.after, 0.7))
    ]
    made = gates.make_gates(UpdaterSettings(), evaluation.classes, evaluation.new, *parts)
    assert [gate.name for gate in made if not gate.holds] == ["points of accuracy lost under distortions"]
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

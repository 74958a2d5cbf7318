import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detector.release.manifest import SourceThresholds
from updater.candidate import gates
from updater.candidate.report import accuracy, evaluation_markdown, figures, model_card
from updater.records import Caught, FoundStretches, Lost, Power, RealsMarked, Robustness, ScannerFound
from updater.settings import UpdaterSettings


def test_the_page_says_on_how_many_of_how_many_was_measured(make_evaluation):
    evaluation = make_evaluation()
    assert "| blend (new) | 20 |" in evaluation_markdown(evaluation)
    some = evaluation.model_copy(update={"resting": {"test": {"blend": 480}, "calibration": {"real": 7}}})
    page = evaluation_markdown(some)
    assert "| blend (new) | 20 of 500 |" in page
    assert "| real | 20 |" in page


def test_page_and_card_say_what_each_distortion_costs_before_and_after_of_the_classes_of_before(
    make_evaluation,
):
    evaluation = make_evaluation(("real", "blend", "gan"), "a" * 64, ("real", "blend"))
    evaluation = evaluation.model_copy(update={"items": {"train": {}, "calibration": {}, "test": {}}})

    def under(one, real, gan):
        shares = {"real": real, "blend": 0.5, "gan": gan}
        found = Robustness(
            items=dict.fromkeys(shares, 8),
            undistorted=dict.fromkeys(shares, 0.75),
            distorted=dict.fromkeys(("CS:1", "CS:3", "GB:1", "GB:3"), shares),
            lost=Lost(share=0.1, low=0.02, high=0.18, reals=8, forgeries=8),
        )
        return one.model_copy(update={"robustness": found})

    measured = evaluation.model_copy(
        update={"before": under(evaluation.before, 0.9, 0.0), "after": under(evaluation.after, 0.7, 1.0)}
    )
    for text in (evaluation_markdown(measured), model_card(measured)):
        assert "| accuracy, % | level 1 | level 3 |" in text
        assert "| GB | 70.0 → 60.0 | 70.0 → 60.0 |" in text
        # With the new family: (0.7 + 0.75) / 2.
        assert (
            "it fell by 10.0 points [2.0 to 18.0, 95 % confidence in either end] on 8 real and 8 forged"
            in text
        )
        assert "its accuracy is 72.5 % on average, and on the same 24 held-back items" in text
    for text in (evaluation_markdown(evaluation), model_card(evaluation)):
        assert "accuracy, %" not in text


def test_page_and_card_say_how_often_a_map_marks_a_real_picture(make_evaluation):
    evaluation = make_evaluation().model_copy(update={"items": {"train": {}, "calibration": {}, "test": {}}})
    marking = evaluation.model_copy(update={"reals_marked": RealsMarked(share=0.125, reals=24)})
    for text in (evaluation_markdown(marking), model_card(marking)):
        assert "Its maps mark 12.5 % of 24 real pictures, on more than 2 % of their cells" in text
    assert "Its maps" not in evaluation_markdown(evaluation)
    assert "does not say where a picture is forged" in model_card(evaluation)


def test_the_page_has_the_energy_alone_beside_the_fused_score(make_evaluation):
    evaluation = make_evaluation()
    after = evaluation.after.model_copy(update={"rejection_energy_auroc": 0.525})
    page = evaluation_markdown(evaluation.model_copy(update={"after": after}))
    assert "90.0; by the energy alone 52.5." in page
    assert "energy" not in evaluation_markdown(evaluation)


def test_page_and_card_say_which_sources_have_thresholds_of_their_own(make_evaluation):
    plain = make_evaluation().model_copy(update={"items": {"train": {}, "calibration": {}, "test": {}}})
    own = SourceThresholds(groups=23, unknown_threshold=1, fake_threshold=0.5)
    with_own = plain.model_copy(update={"sources": {"camera": own}})
    for text in (evaluation_markdown(with_own), model_card(with_own)):
        assert "Judged by thresholds of their own: camera (23 groups of reals)." in text
    for text in (evaluation_markdown(plain), model_card(plain)):
        assert "Every source is judged by the same thresholds" in text


def test_page_and_card_say_how_what_says_when_a_video_is_forged_fared(make_evaluation):
    plain = make_evaluation(("real", "blend"), "a" * 64, ("real", "blend"))
    plain = plain.model_copy(update={"items": {"train": {}, "calibration": {}, "test": {}}})
    found = ScannerFound(reals=50, reals_told=0.04, forged=48, stretches=90, found=0.3, ap_50=0.431)
    measured = plain.model_copy(update={"scanner": found})
    for text in (evaluation_markdown(measured), model_card(measured)):
        assert (
            "Of 50 real clips, simulated from held-back real pictures, a forged stretch is told in 4.0 %"
            in text
        )
        assert "the 90 stretches of 48 such clips with pseudo-forgeries, 30.0 % are told" in text
        assert "ap_0.5 is 0.431" in text
    assert "real clips" not in evaluation_markdown(plain)
    assert "it has no scanner" in model_card(plain)


def test_page_and_card_say_on_how_many_real_videos_a_scanner_rests(make_evaluation):
    plain = make_evaluation().model_copy(update={"items": {"train": {}, "calibration": {}, "test": {}}})
    without = ScannerFound(reals=50, reals_told=0.04, forged=48, stretches=90, found=0.3, ap_50=0.431)
    of_videos = FoundStretches(reals=16, reals_told=0.125, forged=16, stretches=30, found=0.2, ap_50=0.3)
    found = without.model_copy(update={"learnt_library": 48, "held_library": 21, "library": of_videos})
    for make in (evaluation_markdown, model_card):
        text = make(plain.model_copy(update={"scanner": found}))
        assert "It learnt from 48 clips of real videos" in text
        assert "set on 21 real videos too" in text
        assert "Of 16 real videos of the test split, a stretch is told in 12.5 %" in text
        assert "of 30 pseudo-forged stretches in them 20.0 % are told" in text
        text = make(plain.model_copy(update={"scanner": without}))
        assert "It learnt from 0 clips of real videos" in text
        assert "simulated clips alone" in text


def test_the_first_release_has_forgotten_nothing_and_no_figure_for_it(make_evaluation):
    found = figures(make_evaluation(("real", "blend", "gan"), named=0.8))
    assert found == {
        "aa": pytest.approx((0.98 + 0.8 + 0.8) / 3),
        "unseen_auc": 0.9,
        "reals_unknown": 0.01,
        "reals_fake": 0.01,
    }


def test_forgetting_is_of_the_old_families_alone_and_negative_where_they_are_forgotten(make_evaluation):
    evaluation = make_evaluation(("real", "blend", "gan"), "a" * 64, ("real", "blend"), named=0.7)
    before = evaluation.before.classes
    unlike = before | {"gan": before["gan"].model_copy(update={"named": 0.0})}
    evaluation = evaluation.model_copy(
        update={"before": evaluation.before.model_copy(update={"classes": unlike})}
    )
    assert figures(evaluation)["af"] == pytest.approx(0.7 - 0.9)


def test_the_power_is_a_figure_where_it_was_measured(make_evaluation):
    evaluation = make_evaluation()
    power = Power(share=0.4, low=0.2, high=0.7, families={"blend": Caught(items=9, share=0.4)})
    after = evaluation.after.model_copy(update={"power": power})
    assert figures(evaluation.model_copy(update={"after": after}))["power"] == 0.4


def test_the_accuracy_weighs_reals_as_all_families_together_and_is_a_half_for_who_says_one_thing():
    assert accuracy({"real": 0.9, "blend": 0.6, "gan": 0.2}) == pytest.approx((0.9 + 0.4) / 2)
    assert accuracy({"real": 0.9, "blend": 0.6, "gan": 0.2}, ["gan"]) == pytest.approx((0.9 + 0.2) / 2)
    assert accuracy({"real": 0, "blend": 1, "gan": 1}) == accuracy({"real": 1, "blend": 0}) == 0.5
    assert math.isnan(accuracy({"blend": 1}))
    assert math.isnan(accuracy({"real": 1}))


def test_robustness_is_a_figure_where_it_was_measured(make_evaluation):
    evaluation = make_evaluation()
    found = Robustness(
        items={"real": 9, "blend": 9},
        undistorted={"real": 1, "blend": 1},
        distorted={"CS:1": {"real": 0.8, "blend": 0.6}, "CS:3": {"real": 0.4, "blend": 0.6}},
    )
    after = evaluation.after.model_copy(update={"robustness": found})
    assert figures(evaluation.model_copy(update={"after": after}))["robustness"] == pytest.approx(0.6)


def test_a_figure_that_is_no_number_is_left_out(make_evaluation):
    evaluation = make_evaluation()
    after = evaluation.after.model_copy(update={"rejection_auroc": math.nan})
    assert "unseen_auc" not in figures(evaluation.model_copy(update={"after": after}))


def test_a_class_that_waits_for_more_items_is_not_the_release_s(make_evaluation):
    evaluation = make_evaluation(("real", "blend", "gan"), named=0.5)
    assert figures(evaluation.model_copy(update={"classes": ("real", "blend")}))["aa"] == pytest.approx(
        (0.98 + 0.5) / 2
    )


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

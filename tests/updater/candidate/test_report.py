import math

import pytest

from detector.release.manifest import SourceThresholds
from updater.candidate.report import accuracy, evaluation_markdown, figures, model_card
from updater.records import Caught, FoundStretches, Lost, Power, RealsMarked, Robustness, ScannerFound


def test_the_page_says_on_how_many_of_how_many_was_measured(make_evaluation):
    evaluation = make_evaluation()
    assert "| blend (new) | 20 |" in evaluation_markdown(evaluation)
    some = evaluation.model_copy(update={"resting": {"test": {"blend": 480}, "calibration": {"real": 7}}})
    page = evaluation_markdown(some)
    assert "| blend (new) | 20 of 500 |" in page
    assert "| real | 20 |" in page


def changed(evaluation, **after):
    return evaluation.model_copy(update={"after": evaluation.after.model_copy(update=after)})


def test_page_and_card_say_what_each_distortion_costs_before_and_after_of_old_classes(make_evaluation):
    evaluation = make_evaluation(("real", "blend", "gan"), "a" * 64, ("real", "blend"))

    def under(real, gan):
        shares = {"real": real, "blend": 0.5, "gan": gan}
        return Robustness(
            items=dict.fromkeys(shares, 8),
            undistorted=dict.fromkeys(shares, 0.75),
            distorted=dict.fromkeys(("CS:1", "CS:3", "GB:1", "GB:3"), shares),
            lost=Lost(share=0.1, low=0.02, high=0.18, reals=8, forgeries=8),
        )

    before = evaluation.before.model_copy(update={"robustness": under(0.9, 0.0)})
    measured = changed(evaluation.model_copy(update={"before": before}), robustness=under(0.7, 1.0))
    for make in (evaluation_markdown, model_card):
        text = make(measured)
        assert "| accuracy, % | level 1 | level 3 |" in text
        assert "| GB | 70.0 → 60.0 | 70.0 → 60.0 |" in text
        # With the new family: (0.7 + 0.75) / 2.
        fell = "it fell by 10.0 points [2.0 to 18.0, 95 % confidence in either end] on 8 real and 8 forged"
        assert fell in text
        assert "its accuracy is 72.5 % on average, and on the same 24 held-back items" in text
        assert "accuracy, %" not in make(evaluation)


def test_the_card_names_what_is_mistaken_for_what_the_largest_share_first(make_evaluation):
    def card(confusion):
        return model_card(changed(make_evaluation(), confusion=confusion))

    told = "blend called real: 3 of 10; blend called unknown: 1 of 10; real called unknown: 4 of 100."
    assert told in card({"real": {"real": 96, "unknown": 4}, "blend": {"blend": 6, "real": 3, "unknown": 1}})
    assert "No held-back item got another name" in card({"real": {"real": 4}, "blend": {"blend": 3}})
    assert "was not kept" in card(None)


def test_the_page_has_the_energy_alone_beside_the_fused_score(make_evaluation):
    page = evaluation_markdown(changed(make_evaluation(), rejection_energy_auroc=0.525))
    assert "90.0; by the energy alone 52.5." in page
    assert "energy" not in evaluation_markdown(make_evaluation())


SIMULATED = ScannerFound(reals=50, reals_told=0.04, forged=48, stretches=90, found=0.3, ap_50=0.431)
VIDEOS = FoundStretches(reals=16, reals_told=0.125, forged=16, stretches=30, found=0.2, ap_50=0.3)


@pytest.mark.parametrize(
    ("found", "has", "lacks"),
    [
        (
            {"reals_marked": RealsMarked(share=0.125, reals=24)},
            ["Its maps mark 12.5 % of 24 real pictures, on more than 2 % of their cells"],
            ["does not say where a picture is forged"],
        ),
        (
            {"sources": {"camera": SourceThresholds(groups=23, unknown_threshold=1, fake_threshold=0.5)}},
            ["Judged by thresholds of their own: camera (23 groups of reals)."],
            ["Every source is judged by the same thresholds"],
        ),
        (
            {"scanner": SIMULATED},
            [
                "Of 50 real clips, simulated from held-back real pictures, a forged stretch is told in 4.0 %",
                "the 90 stretches of 48 such clips with pseudo-forgeries, 30.0 % are told",
                "ap_0.5 is 0.431",
                "It learnt from 0 clips of real videos",
                "simulated clips alone",
            ],
            ["it has no scanner"],
        ),
        (
            {
                "scanner": SIMULATED.model_copy(
                    update={"learnt_library": 48, "held_library": 21, "library": VIDEOS}
                )
            },
            [
                "It learnt from 48 clips of real videos",
                "set on 21 real videos too",
                "Of 16 real videos of the test split, a stretch is told in 12.5 %",
                "of 30 pseudo-forged stretches in them 20.0 % are told",
            ],
            ["simulated clips alone", "it has no scanner"],
        ),
    ],
    ids=["maps", "sources", "scanner", "scanner of videos"],
)
def test_page_and_card_have_a_sentence_of_each_part_that_was_measured(make_evaluation, found, has, lacks):
    plain = make_evaluation(("real", "blend"), "a" * 64, ("real", "blend"))
    for make in (evaluation_markdown, model_card):
        text, without = make(plain.model_copy(update=found)), make(plain)
        assert [part for part in has if part not in text or part in without] == []
        assert [part for part in lacks if part in text] == []
    assert lacks[-1] in model_card(plain)


def test_the_first_release_has_forgotten_nothing_and_no_figure_for_it(make_evaluation):
    assert figures(make_evaluation(("real", "blend", "gan"), named=0.8)) == {
        "aa": pytest.approx((0.98 + 0.8 + 0.8) / 3),
        "unseen_auc": 0.9,
        "reals_unknown": 0.01,
        "reals_fake": 0.01,
    }


def test_forgetting_is_of_the_old_families_alone_and_negative_where_they_are_forgotten(make_evaluation):
    evaluation = make_evaluation(("real", "blend", "gan"), "a" * 64, ("real", "blend"), named=0.7)
    before = evaluation.before
    unlike = before.classes | {"gan": before.classes["gan"].model_copy(update={"named": 0.0})}
    evaluation = evaluation.model_copy(update={"before": before.model_copy(update={"classes": unlike})})
    assert figures(evaluation)["af"] == pytest.approx(0.7 - 0.9)


def test_the_accuracy_weighs_reals_as_all_families_together_and_is_a_half_for_who_says_one_thing():
    assert accuracy({"real": 0.9, "blend": 0.6, "gan": 0.2}) == pytest.approx((0.9 + 0.4) / 2)
    assert accuracy({"real": 0.9, "blend": 0.6, "gan": 0.2}, ["gan"]) == pytest.approx((0.9 + 0.2) / 2)
    assert accuracy({"real": 0, "blend": 1, "gan": 1}) == accuracy({"real": 1, "blend": 0}) == 0.5
    assert math.isnan(accuracy({"blend": 1}))
    assert math.isnan(accuracy({"real": 1}))


def test_a_figure_is_there_where_it_was_measured_and_is_a_number(make_evaluation):
    evaluation = make_evaluation()
    power = Power(share=0.4, low=0.2, high=0.7, families={"blend": Caught(items=9, share=0.4, groups=9)})
    robustness = Robustness(
        items={"real": 9, "blend": 9},
        undistorted={"real": 1, "blend": 1},
        distorted={"CS:1": {"real": 0.8, "blend": 0.6}, "CS:3": {"real": 0.4, "blend": 0.6}},
    )
    found = figures(changed(evaluation, power=power, robustness=robustness))
    assert (found["power"], found["robustness"]) == (0.4, pytest.approx(0.6))
    assert not {"power", "robustness"} & figures(evaluation).keys()
    assert "unseen_auc" not in figures(changed(evaluation, rejection_auroc=math.nan))


def test_a_class_that_waits_for_more_items_is_not_the_release_s(make_evaluation):
    assert figures(
        make_evaluation(("real", "blend", "gan"), named=0.5).model_copy(update={"classes": ("real", "blend")})
    )["aa"] == pytest.approx((0.98 + 0.5) / 2)

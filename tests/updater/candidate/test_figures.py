import math

import pytest

from updater.candidate.figures import accuracy, figures
from updater.records import Caught, Power, Robustness


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

"""What may be chosen of a run, and what is refused in one line."""

import pytest

from updater.benchmark.deeperforensics import models
from updater.benchmark.deeperforensics.data import ChoiceError, Choices, variants_of


def choices(train="std", test="std"):
    return Choices.named(train, test, "forensic", synthetic=True)


def test_trainings_and_tests_are_lists_of_variants_and_a_training_may_join_several():
    found = choices("std, std+mix3,std", "std,sing")
    assert found.train == ("std", "std+mix3")
    assert found.test == ("std", "sing")
    assert variants_of("std+mix3+std") == ("std", "mix3")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"train": "std+mix5"}, r"--train 'mix5' is no variant: choose of std, sing"),
        ({"train": ""}, "--train '' is no variant"),
        ({"train": "std+reenact"}, "--train 'reenact' is no variant"),
        ({"test": "hidden"}, "--test 'hidden' is no variant"),
        ({"test": "level6"}, "--test 'level6' is no variant"),
    ],
)
def test_a_variant_that_is_none_is_one_line_that_names_those_that_are(wrong, said):
    with pytest.raises(ChoiceError, match=said):
        choices(**wrong)


@pytest.mark.parametrize(
    "model", ["x3d", "x3d_m", "lstm", "c3d:resnet18", "tsn:no_such_model", "frames:no_such_model", "frames:"]
)
def test_a_model_that_is_none_is_one_line(model):
    with pytest.raises(models.ModelError, match="--model") as caught:
        models.check(model)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "model", ["forensic", "frames:resnet18", "c3d", "i3d", "lstm:resnet18", "tsn:resnet18"]
)
def test_the_papers_networks_are_models(model):
    models.check(model)


def test_single_distortions_are_tested_by_what_saw_none_where_that_is_trained():
    assert choices("std+rand,std").of_distortions == "std"
    assert choices("std+rand,sing").of_distortions == "std+rand"

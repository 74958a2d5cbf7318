import pytest

from updater.benchmark.deeperforensics.choices import ChoiceError, checked, variants_of
from updater.benchmark.deeperforensics.models import ModelError


def choices(train="std", test="std", model="forensic"):
    return checked(train, test, model, synthetic=True)


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


@pytest.mark.parametrize("model", ["x3d", "frames:no_such_model", "frames:"])
def test_a_model_that_is_none_is_one_line(model):
    with pytest.raises(ModelError, match="--model") as caught:
        choices(model=model)
    assert "\n" not in str(caught.value)


def test_single_distortions_are_tested_by_what_saw_none_where_that_is_trained():
    assert choices("std+rand,std").of_distortions == "std"
    assert choices("std+rand,sing").of_distortions == "std+rand"

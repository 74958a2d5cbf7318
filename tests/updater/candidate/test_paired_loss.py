"""What a candidate has lost on the same items, and how much of it chance explains."""

import numpy as np
import pytest

from updater.candidate.figures import accuracy
from updater.candidate.paired_loss import lost_on
from updater.settings import UpdaterSettings

BOUND = UpdaterSettings().max_robustness_points / 100
DISTORTIONS = 14


def judged(rng, items, lost):
    """Two releases on the same items, bool [m, n] each, the second less often right by `lost`.

    An item is as hard for both in half of its hardness. Right is whatever is above a level; the levels are
    those at which a standard normal variable is right in 75 % and in 75 % - lost.
    """
    hard = rng.normal(size=items) * 0.5**0.5
    levels = -0.674, -0.674 if not lost else -0.253  # 75 %, and 60 %
    return [
        hard + rng.normal(size=items) * 0.3**0.5 + rng.normal(size=(DISTORTIONS, items)) * 0.2**0.5 > level
        for level in levels
    ]


def refused(items, lost, families=2, times=300):
    """The share of updates that such a gate refuses, of so many reals and as many forgeries."""
    rng = np.random.default_rng(0)
    names = ["real"] * items + [f"family-{number % families}" for number in range(items)]
    groups = [str(number) for number in range(2 * items)]
    found = [lost_on(*judged(rng, 2 * items, lost), names, groups) for _ in range(times)]
    return np.mean([one.low > BOUND for one in found]), np.mean([one.share > BOUND for one in found])


@pytest.mark.parametrize(("items", "at_least"), [(80, 0.95), (40, 0.8), (20, 0.5)])
def test_a_candidate_that_is_fifteen_points_worse_is_refused_as_far_as_so_many_items_can_see(items, at_least):
    assert refused(items, 0.15)[0] >= at_least


@pytest.mark.parametrize("items", [4, 10, 80])
def test_equal_releases_are_not_refused_by_chance_on_few_items(items):
    by_chance, by_the_figure_alone = refused(items, 0)
    assert by_chance <= 0.03
    if items <= 10:
        assert by_the_figure_alone > 0.1


def test_one_family_of_many_with_one_item_each_is_a_witness_too():
    assert refused(10, 0, families=10)[0] <= 0.03


def test_what_was_lost_is_the_fall_of_the_accuracy_with_groups_and_families_weighed():
    before = np.array([[1, 1, 1, 1, 1, 1, 0]], bool)
    after = np.array([[0, 1, 1, 1, 0, 1, 1]], bool)
    families = ["real"] * 3 + ["blend"] * 3 + ["gan"]
    groups = ["a", "a", "b", "c", "d", "d", "e"]
    found = lost_on(before, after, families, groups)
    # Of reals group a is right in half; of blend group d; and gan's one is won.
    was, is_ = {"real": 1, "blend": 1, "gan": 0}, {"real": 0.75, "blend": 0.75, "gan": 1}
    assert found.share == pytest.approx(accuracy(was) - accuracy(is_))
    assert (found.reals, found.forgeries) == (3, 4)
    assert found.low < found.share < found.high


def test_the_interval_is_of_the_paired_differences_so_that_what_both_get_wrong_adds_nothing():
    rng = np.random.default_rng(0)
    right = rng.random((DISTORTIONS, 40)) < 0.6
    families, groups = ["real"] * 20 + ["blend"] * 20, [str(number) for number in range(40)]
    same = lost_on(right, right, families, groups)
    assert (same.share, same.low, same.high) == (0, 0, 0)
    other = lost_on(right, rng.random((DISTORTIONS, 40)) < 0.6, families, groups)
    assert other.high - other.low > 0.05


def test_pieces_of_one_photograph_are_one_witness():
    before, after = np.ones((1, 8), bool), np.array([[0, 0, 0, 0, 1, 1, 1, 1]], bool)
    families = ["real", "real", "blend", "blend"] * 2
    apart = lost_on(before, after, families, [str(number) for number in range(8)])
    together = lost_on(before, after, families, ["a", "a", "b", "b", "c", "c", "d", "d"])
    assert together.share == apart.share
    assert together.low < apart.low


def test_a_single_witness_excludes_nothing_and_without_a_side_nothing_was_measured():
    before, after = np.ones((2, 3), bool), np.zeros((2, 3), bool)
    found = lost_on(before, after, ["real", "real", "blend"], ["a", "b", "c"])
    assert (found.share, found.low, found.high) == (1, -1, 1)
    assert lost_on(before, after, ["real"] * 3, ["a", "b", "c"]) is None
    assert lost_on(before, after, ["blend"] * 3, ["a", "b", "c"]) is None
    assert lost_on(before[:, :0], after[:, :0], [], []) is None

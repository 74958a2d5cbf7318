"""Releases under distortions: the same few items for all, and a share of each class that is right."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from detector.release.manifest import GateParameters, Term
from updater.candidate import robustness
from updater.candidate.evaluate import Calls, GatedModel
from updater.candidate.report import accuracy, under_distortions
from updater.candidate.robustness import lost_on, measure_robustness
from updater.distortions.deeperforensics import DEEPERFORENSICS
from updater.settings import UpdaterSettings

GATE = GateParameters(
    terms={"energy": Term(median=0, scale=1, weight=1)}, clip=6, unknown_threshold=0.5, fake_threshold=0.5
)


class Dark:
    """In the place of a graph: whatever is darker than a level is fake, and it keeps what it was asked."""

    def __init__(self, level, wait=None):
        self.level, self.wait, self.asked = level, wait, []
        self.contract = SimpleNamespace(inputs=[SimpleNamespace(name=of) for of in ("crops", "pooling")])

    def score(self, request):
        crops, pooling = request["crops"], request["pooling"]
        if self.wait:
            self.wait(crops)
        self.asked.append(crops.copy())
        levels = pooling @ crops.mean((1, 2, 3))
        logits = np.where((levels < self.level)[:, None], [-9, 9], [9, -9]).astype(np.float32)
        nothing = dict.fromkeys(("unknown_score", "energy"), np.zeros(len(levels), np.float32))
        return {"logits": logits, "features": levels[:, None]} | nothing


@pytest.fixture
def items(labelled):
    """Reals of level 100, and forgeries of level 60 and 40."""
    found = labelled({"real": 30, "blocky": 20, "striped": 4})
    crops = found.crops.copy()
    for family, level in (("real", 100), ("blocky", 60), ("striped", 40)):
        crops[np.repeat(np.array(found.families) == family, np.diff(found.starts))] = level
    return replace(found, crops=crops)


def test_the_items_that_a_candidate_lost_are_named_the_worst_first(items):
    """Striped ones are below 50 under nearly every distortion, blocky ones under few, reals under none."""
    of_live = GatedModel(Dark(50), GATE, ("real", "blocky", "striped"))
    found, _ = measure_robustness(judge(Dark(10)), of_live, items, seed=0, max_s=1e9)
    families = dict(zip(items.ids, items.families, strict=True))
    named = [families[item] for item in found.lost.items]
    assert named == ["striped"] * 4 + ["blocky"] * (len(named) - 4)
    unknown_to_live, _ = measure_robustness(judge(Dark(10)), judge(Dark(50)), items, seed=0, max_s=1e9)
    assert {families[item] for item in unknown_to_live.lost.items} == {"blocky"}


def test_a_live_release_of_the_same_features_is_not_asked_about_crops(items):
    live = Dark(70)
    by_crops = measure_robustness(judge(Dark(50)), judge(Dark(70)), items, seed=0, max_s=1e9)

    def calls(items, features):
        fake, nothing = features[:, 0] < live.level, np.zeros(len(items))
        return Calls(np.where(fake, "fake", "real"), np.array(items.families), nothing, nothing, fake)

    by_features = replace(judge(live), head=SimpleNamespace(calls=calls))
    assert measure_robustness(judge(Dark(50)), by_features, items, seed=0, max_s=1e9) == by_crops
    assert not live.asked


def judge(session):
    return GatedModel(session, GATE, ("real", "blocky"))


def test_the_share_that_is_right_is_said_of_each_class_undistorted_and_under_seven_at_two_levels(items):
    found, of_live = measure_robustness(judge(Dark(50)), None, items, seed=0)
    assert (of_live, found.lost) == (None, None)
    assert found.items == {"real": 30, "blocky": 20, "striped": 4}
    assert found.undistorted == {"real": 1, "blocky": 0, "striped": 1}
    assert set(found.distorted) == {f"{name}:{level}" for name in DEEPERFORENSICS for level in (1, 3)}
    # CC takes 100 to 60 and 60 to 36 at level 3: reals stay real, and the lighter forgeries are found.
    assert found.distorted["CC:1"] == {"real": 1, "blocky": 0, "striped": 1}
    assert found.distorted["CC:3"] == {"real": 1, "blocky": 1, "striped": 1}
    assert found.distorted["GB:3"] == found.undistorted


@pytest.mark.slow
def test_all_that_is_compared_sees_the_same_crops_and_another_seed_other_noise(items):
    asked = []
    for seed in (0, 0, 1):
        sessions = [Dark(50), Dark(70)]
        measure_robustness(*map(judge, sessions), items, seed)
        asked.append([np.concatenate(session.asked) for session in sessions])
    (one, other), (again, _), (anew, _) = asked
    assert (one == other).all()
    assert (one == again).all()
    assert (one != anew).any()


def test_of_many_items_so_many_are_drawn_half_of_them_reals_and_rare_families_first(items, monkeypatch):
    monkeypatch.setattr(robustness, "MAX_ITEMS", 20)
    found, _ = measure_robustness(judge(Dark(50)), None, items, seed=0)
    assert found.items == {"real": 10, "blocky": 6, "striped": 4}


def test_an_item_is_at_most_two_of_its_crops_the_first_and_the_last(labelled):
    many = labelled({"real": 2, "blocky": 2})
    crops = np.arange(40, dtype=np.uint8)[:, None, None, None] + np.zeros((1, 64, 64, 3), np.uint8)
    many = replace(many, crops=crops, starts=np.array([0, 1, 10, 30, 40]))
    session = Dark(50)
    measure_robustness(judge(session), None, many, seed=0)
    # Two items first, of which one is real, undistorted and under each of the distortions.
    undistorted = np.concatenate([session.asked[0], session.asked[15]])
    assert sorted(undistorted[:, 0, 0, 0].tolist()) == [0, 1, 9, 10, 29, 30, 39]


@pytest.mark.slow
def test_what_was_lost_is_of_the_classes_that_the_live_release_knows_and_of_the_same_items(items):
    # The live release finds every forgery, the candidate no "blocky" but under CC at level 3.
    found, of_live = measure_robustness(judge(Dark(50)), judge(Dark(70)), items, seed=0)
    old = ["blocky"]
    assert found.lost.share == pytest.approx(under_distortions(of_live, old) - under_distortions(found, old))
    assert (found.lost.reals, found.lost.forgeries) == (30, 20)
    assert found.lost.low > 0.3
    assert of_live.lost is None
    assert of_live.items == found.items


@pytest.mark.slow
def test_it_ends_in_time_whatever_a_model_takes_and_says_on_how_many_items(items, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(robustness.time, "monotonic", lambda: now[0])

    def taking(seconds_a_crop):
        def wait(crops):
            now[0] += seconds_a_crop * len(crops)

        return Dark(50, wait)

    used = []
    for seconds in (0.0, 0.05, 0.2):
        began = now[0]
        found, _ = measure_robustness(judge(taking(seconds)), judge(taking(seconds)), items, seed=0)
        assert now[0] - began <= robustness.MAX_S
        assert found.items["real"] >= sum(found.items.values()) // 2
        used.append(sum(found.items.values()))
    everything, some, few = used
    assert everything == len(items)
    # Both models see two crops of an item fifteen times: 3 s an item.
    assert some == 16
    assert few == 4


@pytest.mark.slow
def test_a_machine_that_becomes_slower_is_noticed_between_items(items, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(robustness.time, "monotonic", lambda: now[0])

    def wait(crops):
        now[0] += len(crops) * (0.005 if now[0] < 5 else 0.1)

    found, _ = measure_robustness(judge(Dark(50, wait)), None, items, seed=0)
    assert sum(found.items.values()) < len(items)
    assert now[0] <= 60


def test_fewer_items_are_the_first_of_more_and_of_all_classes_alike(items, monkeypatch):
    drawn = []
    for most in (6, 20):
        monkeypatch.setattr(robustness, "MAX_ITEMS", most)
        session = Dark(50)
        found, _ = measure_robustness(judge(session), None, items, seed=0)
        drawn.append(session.asked[0])
        assert found.items["real"] == most // 2
        assert found.items["striped"] >= 1
    assert (drawn[0] == drawn[1]).all()


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
    found = lost_on(before, after, families, ["a", "a", "b", "c", "d", "d", "e"])
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

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from updater.candidate.thresholds import (
    LiveCalls,
    Targets,
    conservative_share,
    fake_threshold,
    keeping_fake,
    keeping_known,
    unknown_threshold,
)


@given(st.integers(1, 600), st.floats(0.005, 0.2), st.floats(0.5, 0.99))
def test_a_conservative_share_is_the_largest_that_keeps_its_confidence(count, share, confidence):
    above = round(conservative_share(count, share, confidence) * count)
    # Were the true share just `share`, so few above would be seen with a chance of 1 - confidence at most.
    if above > 0:
        assert binom.cdf(above, count, share) <= 1 - confidence + 1e-9
    assert binom.cdf(above + 1, count, share) > 1 - confidence - 1e-9


def threshold(scores: dict[str, np.ndarray], *, reals: float = 0.05, classes: float = 1.0) -> float:
    families = np.array([family for family, of in scores.items() for _ in of])
    unknown = np.concatenate(list(scores.values()))
    groups = np.array([f"group-{number}" for number in range(len(unknown))])
    real = np.array([family.endswith("real") for family in families])
    targets = Targets(reals_unknown=reals, classes_unknown=classes, confidence=0.5)
    return unknown_threshold(unknown, families, groups, np.full(len(unknown), ""), real, targets)


def quantiles(count: int, median: float = 0.0, spread: float = 1.0) -> np.ndarray:
    """Scores at the quantiles of an exponential tail on both sides."""
    at = (np.arange(count) + 0.5) / count
    tail = np.where(at < 0.5, np.log(2 * at), -np.log(2 * (1 - at)))
    return (median + spread * tail / np.log(1 / 0.32)).astype("f")


def test_classes_of_one_shape_say_together_what_the_reals_say_alone():
    alone = threshold({"real": quantiles(400)})
    wide = threshold(
        {"real": quantiles(400), "blended": quantiles(400, 5, 3), "smoothed": quantiles(400, -2)}
    )
    assert wide == pytest.approx(alone, abs=0.1)


def test_a_few_odd_reals_move_the_threshold_by_three_quarters_of_what_they_would_alone():
    usual, odd = quantiles(100), quantiles(100)
    odd[-6:] += 30
    others = {"blended": quantiles(400), "smoothed": quantiles(400)}
    moved = threshold({"real": odd} | others) - threshold({"real": usual} | others)
    # Among all classes the six are so few that the shape hardly feels them.
    assert moved == pytest.approx(30 * 3 / 4, abs=1.5)


def test_the_classes_share_holds_where_it_asks_for_more():
    far = {"real": quantiles(400), "blended": quantiles(400, 20)}
    assert threshold(far) < 10
    # Of the two classes' mean, nearly all is the far one's. Above its median, its tail is 0.32 of itself a
    # spread later, so this is the share of fresh items.
    turned_away = 0.5 * 0.32 ** (threshold(far, classes=0.1) - 20)
    assert turned_away == pytest.approx(0.2, abs=0.005)


def test_the_reals_of_all_sources_count_together_whatever_their_names():
    near, far = quantiles(200), quantiles(200, 3)
    one_way = threshold({"a/real": near, "b/real": far, "blended": quantiles(200)})
    assert threshold({"b/real": near, "a/real": far, "blended": quantiles(200)}) == one_way


def test_scores_without_spread_are_their_own_threshold():
    assert threshold({"real": np.ones(40, "f"), "blended": np.ones(40, "f")}) == 1.0


def test_one_other_item_among_near_duplicates_does_not_open_the_gate():
    others = {"real": quantiles(40), "blended": quantiles(40)}
    alike = np.zeros(20, "f")
    alike[0] = 1.0
    # Of so few, none may be above: the shape's farthest item counts.
    with_alike = threshold(others | {"smoothed": alike}, reals=0.005)
    assert with_alike == pytest.approx(threshold(others, reals=0.005), abs=1.5)


def test_the_fake_threshold_keeps_its_share_of_fresh_reals_as_surely_as_it_says():
    groups, sources, real = np.arange(200).astype(str), np.full(200, ""), np.ones(200, bool)
    rng, broken = np.random.default_rng(0), []
    for _ in range(400):
        seen = rng.uniform(0, 1, 200).astype("f")
        found = fake_threshold(seen, groups, sources, real, Targets(reals_fake=0.1))
        # Of fresh reals, whose probabilities are even in 0..1, so many are above it.
        broken.append(1 - found > 0.1)
    assert 0.1 <= np.mean(broken) <= 0.25


def test_the_classes_that_are_live_are_called_unknown_two_points_more_often_at_most():
    families = np.array(["real"] * 100 + ["blended"] * 50 + ["new"] * 400)
    groups = np.array([str(number) for number in range(len(families))])
    known = families != "new"
    unknown = np.concatenate([np.arange(100), np.arange(0, 100, 2), np.full(400, -5.0)]).astype("f")
    # Live: 4 of 100 reals and 3 of 50 blended are unknown, 5 % on average; so 7 % may be.
    said = np.zeros(len(families), bool)
    said[[0, 1, 2, 3, 100, 101, 102]] = True
    live = LiveCalls(known, said, np.zeros(len(families), bool))
    found = keeping_known(unknown, families, groups, live)
    shares = [float((unknown[families == name] > found).mean()) for name in ("real", "blended")]
    assert np.mean(shares) == pytest.approx(0.07, abs=0.011)
    everything = LiveCalls(known, known, known)
    assert keeping_known(unknown, families, groups, everything) <= unknown[known].min()


def keeping(said: int, reals_at: float) -> float:
    """The fake threshold where the live release calls so many of 100 forgeries fake, and reals lie below."""
    families = np.array(["real"] * 100 + ["blended"] * 100 + ["new"] * 100)
    groups = np.array([str(number) for number in range(300)])
    probability = np.concatenate([np.full(100, reals_at), np.arange(100) / 100, np.zeros(100)]).astype("f")
    fake = np.arange(300) >= 200 - said
    live = LiveCalls(families != "new", np.zeros(300, bool), fake)
    real, sources = families == "real", np.full(300, "")
    return keeping_fake(probability, families, groups, sources, real, live, 0.04)


def test_as_many_forgeries_of_live_families_stay_fake_as_the_reals_allow():
    assert keeping(90, reals_at=0.01) == pytest.approx(0.09, abs=0.011)
    assert keeping(60, reals_at=0.01) == pytest.approx(0.39, abs=0.011)
    assert keeping(90, reals_at=0.3) == pytest.approx(0.3)


def test_what_is_kept_of_some_items_is_theirs_alone():
    calls = LiveCalls(*(np.array(one, bool) for one in ([1, 1, 0], [0, 1, 1], [1, 0, 1])))
    some = calls.take(np.array([True, False, True]))
    assert [one.tolist() for one in (some.known, some.unknown, some.fake)] == [
        [True, False],
        [False, True],
        [True, True],
    ]


def test_where_the_only_live_family_is_left_out_nothing_is_kept_of_its_forgeries():
    families = np.array(["real", "real", "new"])
    live = LiveCalls(*(np.array(one, bool) for one in ([1, 1, 0], [0, 0, 0], [0, 0, 1])))
    probability = np.array([0.1, 0.2, 0.9], np.float32)
    assert keeping_fake(probability, *[families] * 3, families == "real", live, 0.04) == 1

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from updater.candidate.thresholds import conservative_share, fake_threshold, unknown_threshold


@given(st.integers(1, 600), st.floats(0.005, 0.2), st.floats(0.5, 0.99))
def test_a_conservative_share_is_the_largest_that_keeps_its_confidence(
    count: int, share: float, confidence: float
) -> None:
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
    return unknown_threshold(unknown, families, groups, real, reals=reals, classes=classes, confidence=0.5)


def quantiles(count: int, median: float = 0.0, spread: float = 1.0) -> np.ndarray:
    """Scores at the quantiles of an exponential tail on both sides."""
    at = (np.arange(count) + 0.5) / count
    tail = np.where(at < 0.5, np.log(2 * at), -np.log(2 * (1 - at)))
    return (median + spread * tail / np.log(1 / 0.32)).astype("f")


def test_classes_of_one_shape_say_together_what_the_reals_say_alone() -> None:
    alone = threshold({"real": quantiles(400)})
    wide = threshold(
        {"real": quantiles(400), "blended": quantiles(400, 5, 3), "smoothed": quantiles(400, -2)}
    )
    assert wide == pytest.approx(alone, abs=0.1)


def test_a_few_odd_reals_move_the_threshold_by_three_quarters_of_what_they_would_alone() -> None:
    usual, odd = quantiles(100), quantiles(100)
    odd[-6:] += 30
    others = {"blended": quantiles(400), "smoothed": quantiles(400)}
    moved = threshold({"real": odd} | others) - threshold({"real": usual} | others)
    # Among all classes the six are so few that the shape hardly feels them.
    assert moved == pytest.approx(30 * 3 / 4, abs=1.5)


def test_the_classes_share_holds_where_it_asks_for_more() -> None:
    far = {"real": quantiles(400), "blended": quantiles(400, 20)}
    assert threshold(far) < 10
    turned_away = far["blended"] > threshold(far, classes=0.1)
    assert 0.15 <= turned_away.mean() <= 0.2


def test_the_reals_of_all_sources_count_together_whatever_their_names() -> None:
    near, far = quantiles(200), quantiles(200, 3)
    one_way = threshold({"a/real": near, "b/real": far, "blended": quantiles(200)})
    assert threshold({"b/real": near, "a/real": far, "blended": quantiles(200)}) == one_way


def test_scores_without_spread_are_their_own_threshold() -> None:
    assert threshold({"real": np.ones(40, "f"), "blended": np.ones(40, "f")}) == 1.0


def test_one_other_item_among_near_duplicates_does_not_open_the_gate() -> None:
    others = {"real": quantiles(40), "blended": quantiles(40)}
    alike = np.zeros(20, "f")
    alike[0] = 1.0
    # Of so few, none may be above: the shape's farthest item counts.
    with_alike = threshold(others | {"smoothed": alike}, reals=0.005)
    assert with_alike == pytest.approx(threshold(others, reals=0.005), abs=1.5)


def test_the_fake_threshold_lets_the_share_of_reals_pass() -> None:
    probability = np.linspace(0, 1, 200, dtype="f")
    families = np.array(["real"] * 200)
    groups = np.array([str(number) for number in range(200)])
    found = fake_threshold(probability, families, groups, families == "real", reals=0.1, confidence=0.8)
    above = (probability > found).sum()
    assert above == round(200 * conservative_share(200, 0.1, 0.8)) > 0

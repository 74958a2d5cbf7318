import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memory.estimate.accuracy import Residual, correct


def residuals(right: np.ndarray, probability: np.ndarray, chance: float) -> list[Residual]:
    each = right - probability
    return [Residual(float(r), float(r), chance) for r in each]


def stream(rng: np.random.Generator, items: int, shift: float) -> tuple[np.ndarray, np.ndarray]:
    """(probability, right): calibrated, but for a shift of what is right."""
    probability = rng.beta(8, 2, items)
    return probability, (rng.random(items) < np.clip(probability - shift, 0, 1)).astype(float)


@pytest.mark.parametrize("shift", [0.0, 0.2])
def test_the_audit_covers_what_is_right_at_every_look_whether_or_not_probabilities_are_calibrated(shift):
    rng, missed, chance = np.random.default_rng(0), 0, 0.01
    for _ in range(100):
        probability, right = stream(rng, 8000, shift)
        drawn = rng.random(8000) < chance
        outside = False
        for until in range(1000, 8001, 1000):
            p, r, d = probability[:until], right[:until], drawn[:until]
            share = correct(until, p.sum(), residuals(r[d], p[d], chance), chance)
            outside |= not share.low <= r.mean() <= share.high
        missed += outside
    assert missed <= 5


def test_an_audit_of_everything_is_narrow_and_no_audit_says_nothing():
    p, right = stream(np.random.default_rng(2), 5000, 0.2)
    everything = correct(5000, p.sum(), residuals(right, p, 1.0), 1.0)
    assert everything.value == pytest.approx(right.mean())
    assert everything.high - everything.low < 0.1
    nothing = correct(5000, p.sum(), [], 0.001)
    assert (nothing.low, nothing.high) == (0, 1)


def test_what_nobody_could_say_widens_both_ends():
    p, right = stream(np.random.default_rng(3), 200, 0.0)
    audited = residuals(right, p, 0.1)
    told = correct(2000, 1600.0, audited, 0.1)
    unsaid = correct(2000, 1600.0, [*audited[:-20], *([Residual(-0.8, 0.2, 0.1)] * 20)], 0.1)
    assert unsaid.low < told.low
    assert unsaid.high > told.high - 0.03


@given(
    st.lists(st.tuples(st.booleans(), st.floats(0, 1), st.floats(0.001, 1)), max_size=30),
    st.integers(30, 10**6),
)
def test_each_share_lies_in_its_interval_and_both_in_0_to_1(drawn, items):
    audited = [Residual(float(right) - p, float(right) - p, chance) for right, p, chance in drawn]
    share = correct(items, items * 0.7, audited, 0.001)
    assert 0 <= share.low <= share.value <= share.high <= 1

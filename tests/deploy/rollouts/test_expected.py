"""What an evaluation lets the checks expect stands beside each bound before anybody approves."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.rollout_records import Expected
from deploy.rollouts.bets import LOG_20, Bets, bets_to_pass
from deploy.rollouts.checks import REAL_TO_NEW, REALS_LOST, UNKNOWN_MORE, family_check
from deploy.rollouts.expected import expected_of
from updater.evaluation_parts import Flip, Flips
from updater.records import Evaluation


@pytest.fixture
def evaluated(make_evaluation: Callable[..., Evaluation]) -> Callable[..., Evaluation]:
    """Makes the evaluation of a release that learnt gan, by its negative flips: what is called what."""

    def make(*flips: tuple[str, str, int], unknown_after: int = 4) -> Evaluation:
        made = make_evaluation(("real", "blend", "gan"), "a" * 64, ("real", "blend"))
        assert made.before is not None
        confused = {"real": {"real": 200, "unknown": 4, "blend": 6}, "blend": {"blend": 50, "real": 2}}
        before = made.before.model_copy(update={"confusion": confused})
        real = {**confused["real"], "unknown": unknown_after}
        after = made.after.model_copy(update={"confusion": {**confused, "real": real}})
        lost = tuple(
            Flip(exemplar=f"x{number}", family=what, before=what, after=called)
            for what, called, count in flips
            for number in range(count)
        )
        found = Flips(items=262, lost=lost, won=0)
        return made.model_copy(update={"before": before, "after": after, "flips": found, "new": ("gan",)})

    return make


def by_check(evaluation: Evaluation) -> dict[str, Any]:
    return {each.check: each for each in expected_of(evaluation)}


def test_each_check_has_its_expected_share(evaluated: Callable[..., Evaluation]) -> None:
    expected = by_check(
        evaluated(
            ("real", "unknown", 1),
            ("real", "blend", 1),
            ("real", "gan", 2),
            ("blend", "real", 1),
            unknown_after=5,
        )
    )
    assert (expected[REALS_LOST].counted, expected[REALS_LOST].items) == (2, 198)
    assert expected[REALS_LOST].share == pytest.approx(2 / 198)
    assert expected[REAL_TO_NEW].share == pytest.approx(2 / 200)
    assert (expected[family_check("blend")].share, family_check("gan") in expected) == (1 / 50, False)
    assert expected[UNKNOWN_MORE].share == pytest.approx(1 / 210)
    assert not any(each.beyond for each in expected.values())
    assert expected["over twice as slow, net"].share is None


def test_a_share_over_its_bound_is_said_and_never_passes(evaluated: Callable[..., Evaluation]) -> None:
    expected = by_check(evaluated(("real", "unknown", 9), ("real", "gan", 3), ("blend", "real", 8)))
    over = {name for name, each in expected.items() if each.beyond}
    assert over == {REALS_LOST, REAL_TO_NEW, family_check("blend")}
    assert [expected[name].units for name in (REALS_LOST, REAL_TO_NEW, family_check("blend"))] == [None] * 3
    assert expected[REAL_TO_NEW].asks
    assert not any(each.never for each in expected.values())
    assert Expected(check="a", counted=3, items=100, share=0.03, tolerated=0.03, units=None).never


def test_an_evaluation_that_does_not_say_expects_nothing(make_evaluation: Callable[..., Evaluation]) -> None:
    assert expected_of(make_evaluation()) == ()
    assert expected_of(make_evaluation(("real", "blend"), "a" * 64, ("real", "blend"))) == ()


@given(st.sampled_from([0.005, 0.03, 0.05, 0.1]), st.floats(-0.02, 0.2).map(lambda share: round(share, 3)))
def test_the_fewer_losses_the_sooner_it_passes_and_from_its_bound_on_never(
    bound: float, share: float
) -> None:
    many, fewest = bets_to_pass(bound, share), bets_to_pass(bound, 0.0)
    assert fewest == zeros(bound)
    assert many is None or (many <= fewest) == (share <= 0)
    assert share < bound or many is None


def zeros(bound: float) -> int:
    """So many units without any loss pass."""
    bets, units = Bets(np.array([bound])), 0
    while bets.log_below[0] < LOG_20:
        bets.bet_below(0.0)
        units += 1
    return units

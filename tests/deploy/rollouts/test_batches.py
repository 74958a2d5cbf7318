"""Evidence is a function of what lies on the topic: however it was read, and whenever somebody looked."""

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from deploy.rollouts.checks import REALS_LOST
from deploy.rollouts.evidence import RolloutEvidence
from detector.records import Comparison
from tests.deploy.rollouts.conftest import CHALLENGER, CHAMPION, said

KNOWN = ("blend", "swap")
WORDS = ("real", "real", "real", "unknown", "blend", "error")
Item = tuple[Comparison, float]


def items_of(seed: int, units: int = 40, lost: float = 0.0) -> list[Item]:
    """Comparisons of some units, as three sources send them."""
    rng, items = np.random.default_rng(seed), []
    for number in range(units * 6):
        champion, challenger = rng.choice(WORDS, 2) if rng.random() < 0.2 else ("real", "real")
        if rng.random() < lost:
            champion, challenger = "real", "unknown"
        comparison = Comparison(
            id=f"media-{number % 2}-{number}",
            source=f"camera {rng.integers(3)}",
            digest="",
            champion=said(CHAMPION, str(champion)),
            challenger=said(CHALLENGER, str(challenger), model_s=float(rng.choice([0.1, 0.3]))),
            answered="champion",
        )
        items.append((comparison, 10.0 * (number // 6) + number % 6))
    return items


def new(labels: dict[str, str] | None = None, known: Sequence[str] = ("camera",)) -> RolloutEvidence:
    found = RolloutEvidence(KNOWN, (*KNOWN, "gan"), labels or {}, known)
    found.steps_began([105.0, 233.0])
    return found


def read(items: list[Item], ends: list[int]) -> RolloutEvidence:
    """Read in batches that end at these places; units are closed after each, as far as they can be."""
    found, begin = new(known=[f"camera {n}" for n in range(3)]), 0
    for end in [*sorted(ends), len(items)]:
        for comparison, at_s in items[begin:end]:
            found.add(comparison, at_s)
        begin = max(begin, end)
        if begin:
            found.close(items[begin - 1][1])
        found.checks({})
    found.close(1e6)
    return found


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.lists(st.integers(0, 240), max_size=12), st.sampled_from([0.0, 0.1]))
def test_the_checks_are_the_same_however_the_topic_was_read(seed: int, ends: list[int], lost: float) -> None:
    items = items_of(seed, lost=lost)
    at_once, in_parts = read(items, []), read(items, ends)
    assert in_parts.left_out["it came too late"] == 0
    assert at_once.checks({}) == in_parts.checks({})
    assert at_once.table == in_parts.table


def test_labels_that_say_what_the_champion_said_leave_the_bets_as_they_were() -> None:
    items = items_of(3)
    reals = {each.id: "real" for each, _ in items if each.champion.label == "real"}
    first, again = new(), new(reals | {"media-0-99999": "real"})
    for found in (first, again):
        for item in items:
            found.add(*item)
        found.close(1e6)
    assert first.checks({}) == again.checks({})


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6), st.data())
def test_an_item_that_is_repeated_counts_once(seed: int, data: st.DataObject) -> None:
    items = items_of(seed, units=10)
    again = [(place, items[place]) for place in data.draw(st.lists(st.integers(0, 59), max_size=9))]
    twice = items.copy()
    for place, (comparison, at_s) in sorted(again, reverse=True, key=lambda one: one[0]):
        twice.insert(place + 1, (comparison, at_s))
    once, repeated = read(items, []), read(twice, [])
    assert repeated.left_out["it came before"] == len(again)
    assert once.checks({}) == repeated.checks({})
    assert once.shared == repeated.shared


@pytest.mark.parametrize("units_after", [0, 400])
def test_a_check_that_failed_stays_failed_whenever_somebody_looks(units_after: int, compared: Any) -> None:
    found = new()
    for unit in range(12 + units_after):
        said = "unknown" if unit < 12 else "real"
        found.add(compared(unit, "real", said), 10.0 * unit)
    found.close(1e6)
    (reals,) = (check for check in found.checks({}) if check.name == REALS_LOST)
    assert reals.state == "failed"


def test_a_step_that_begins_is_known_to_the_bets_once(compared: Any) -> None:
    found, steps = new(), []
    found.steps_began([])
    for unit in range(30):
        if unit == 20:
            steps = [10.0 * unit + 5]
        found.steps_began(steps)
        found.add(compared(unit, "real", "real"), 10.0 * unit)
        found.close(10.0 * unit + 9)
    known = new()
    known.steps_began([205.0])
    for unit in range(30):
        known.add(compared(unit, "real", "real"), 10.0 * unit)
    for each in (found, known):
        each.close(1e6)
    logs = [each.tallies[0].bets.log_above for each in (found, known)]
    np.testing.assert_allclose(*logs)
    without = copy.deepcopy(new())
    without.steps_began([])
    for unit in range(30):
        without.add(compared(unit, "real", "real"), 10.0 * unit)
    without.close(1e6)
    assert not np.allclose(logs[0], without.tallies[0].bets.log_above)

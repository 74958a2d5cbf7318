"""Comparisons add up to checks by units of one source's 10 seconds."""

import itertools
from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.rollouts.bets import LOG_20, Bets, interval
from deploy.rollouts.checks import NOT_ALONE, REAL_TO_NEW, REALS_LOST, rules
from deploy.rollouts.evidence import RolloutEvidence
from deploy.rollouts.reader import known_sources
from deploy.rollouts.tallies import NEW_NAMES
from memory.schema import verdicts
from memory.store import Store

pytestmark = pytest.mark.slow

KNOWN, NEW = ("blend", "swap"), "gan"


def evidence(labels=None):
    return RolloutEvidence(KNOWN, (*KNOWN, NEW), labels or {}, ["camera"])


def check(found, name, **waived):
    return next(each for each in found.checks(waived) if each.name == name)


def fill(found, compared, units, says, *, first=0, **given):
    """So many units of 10 seconds, each with these items; what was read is bet on."""
    for unit in range(first, first + units):
        for place, (champion, challenger) in enumerate(says):
            number = 1000 * unit + place
            found.add(compared(number, champion, challenger, **given), 10.0 * unit + place % 10)
    found.close(10.0 * (first + units) + 2)


def test_the_parts_of_one_in_a_hundred_sum_to_it():
    assert sum(rule.alpha for rule in rules(KNOWN)) == pytest.approx(0.01)


def test_reals_that_are_lost_fail_and_reals_that_stay_pass(compared):
    good, bad = evidence(), evidence()
    fill(good, compared, 250, [("real", "real")] * 4)
    assert (check(good, REALS_LOST).state, check(good, REALS_LOST).share) == ("passed", 0)
    fill(bad, compared, 12, [("real", "real")] * 4 + [("real", "unknown")])
    failed = check(bad, REALS_LOST)
    assert (failed.state, failed.counted, failed.items, failed.units) == ("failed", 12, 60, 12)
    assert failed.low > failed.tolerated


def test_a_burst_of_alike_items_is_one_unit(compared):
    found = evidence()
    fill(found, compared, 1, [("real", "unknown")] * 500)
    lost = check(found, REALS_LOST)
    assert (lost.state, lost.units, lost.items) == ("undecided", 1, 500)


def test_a_family_that_goes_blind_fails_and_one_that_is_rare_is_not_measured(compared):
    found = evidence()
    fill(found, compared, 12, [("blend", "real"), ("real", "real")])
    assert check(found, "sure blend → real").state == "failed"
    assert check(found, "sure swap → real").state == "not measured"


def test_a_champion_that_is_not_sure_says_nothing_of_a_family(compared):
    found = evidence()
    fill(found, compared, 12, [("blend", "real")], sure=0.85)
    assert check(found, "sure blend → real").items == 0


def test_more_unknowns_are_counted_net(compared):
    found = evidence()
    fill(found, compared, 300, [("real", "unknown"), ("unknown", "real")] + [("real", "real")] * 8)
    more = check(found, "unknown, more than before")
    assert (more.counted, more.counter, more.share, more.state) == (300, 300, 0, "passed")


def test_failing_and_slowness_are_counted_net(compared):
    found = evidence()
    fill(found, compared, 40, [("real", "error"), ("real", "real")])
    assert check(found, "could not score, net").state == "failed"
    slow = evidence()
    fill(slow, compared, 200, [("real", "real")], challenger_s=0.3)
    assert check(slow, "over twice as slow, net").state == "failed"


def test_a_new_family_asks_for_labels_and_those_that_are_real_count_as_lost(compared):
    items = [("real", NEW)] + [("real", "real")] * 9
    asking = evidence()
    fill(asking, compared, 60, items)
    assert check(asking, REAL_TO_NEW).state == "look"
    assert check(asking, REALS_LOST).counted == 0
    judged = evidence({f"forgewatch.media-0-{1000 * unit}": "real" for unit in range(20)})
    fill(judged, compared, 60, items)
    assert check(judged, REAL_TO_NEW).state == "passed"
    assert check(judged, REALS_LOST).counted == 20
    forged = evidence({f"forgewatch.media-0-{1000 * unit}": NEW for unit in range(20)})
    fill(forged, compared, 60, items)
    assert check(forged, REALS_LOST).counted == 0


def of_sources(known, without=(), *, alone=False):
    return RolloutEvidence(KNOWN, (*KNOWN, NEW), {}, known, without, alone)


def test_a_source_has_a_history_after_fifty_verdicts_and_a_day(sqlite_url):
    before, store, day_ms = datetime.now(UTC), Store(sqlite_url), 86_400_000
    sent = 50 * [("old", day_ms)] + 90 * [("large", day_ms)] + 90 * [("new", 1)] + 49 * [("few", day_ms)]
    row = dict.fromkeys(("partition", "item_partition", "item_offset"), 0) | {"release": "", "label": "real"}
    now_ms = int(before.timestamp() * 1000)
    rows = [row | {"source": s, "offset": n, "at_ms": now_ms - ago} for n, (s, ago) in enumerate(sent)]
    with store.write_unversioned() as connection:
        connection.execute(verdicts.insert(), rows)
    assert known_sources(store, before) == ["large", "old"]
    store.close()


HONEST = ("one", "two", "three", "four", "five")


@pytest.mark.parametrize("forged_items", [1, 50])
@pytest.mark.parametrize("others", [1, 5])
def test_one_source_of_any_size_fails_no_challenger(compared, forged_items, others):
    found, numbers = of_sources(["odd", *HONEST]), itertools.count()
    for unit in range(300):
        for _ in range(forged_items):
            found.add(compared(next(numbers), "real", "unknown", "odd"), 10.0 * unit)
        for number, source in enumerate(HONEST[:others]):
            for place in range(3):
                said = "unknown" if unit % 30 == 6 * number + 5 and place == 0 else "real"
                found.add(compared(next(numbers), "real", said, source), 10.0 * unit)
        found.close(10.0 * unit + 12)
        assert check(found, REALS_LOST).state != "failed", unit
    assert (check(found, REALS_LOST).state, check(found, REALS_LOST).reason) == (
        "inconclusive",
        "only odd shows it",
    )


@pytest.mark.parametrize("others", [1, 5])
def test_one_source_passes_no_challenger_that_loses_reals_of_the_others(compared, others):
    found, numbers = of_sources(["odd", *HONEST]), itertools.count()
    for unit in range(300):
        found.add(compared(next(numbers), "real", "real", "odd"), 10.0 * unit)
        for source in HONEST[:others]:
            for place in range(5):
                said = "unknown" if place == 0 and unit % 2 == 0 else "real"
                found.add(compared(next(numbers), "real", said, source), 10.0 * unit)
        found.close(10.0 * unit + 12)
        assert check(found, REALS_LOST).state != "passed", unit
        if others == 5 and check(found, REALS_LOST).state == "failed":
            break
    else:
        assert others == 1


@pytest.mark.parametrize(("forged", "lost"), [("real", 5), ("unknown", 0)])
@pytest.mark.parametrize("known", [(), ("one",), (NEW_NAMES,)])
def test_names_without_a_history_pass_and_fail_nothing_however_many_they_are(compared, forged, lost, known):
    """One camera's items beside what a producer sends under twenty names to pass a challenger, or fail it."""
    found, numbers = of_sources(known), itertools.count()
    for unit in range(200):
        for place in range(10):
            said = "unknown" if place < 1 and unit % 10 < 2 * lost else "real"
            found.add(compared(next(numbers), "real", said, "one"), 10.0 * unit)
        for name in range(20):
            found.add(
                compared(next(numbers), "real", forged, NEW_NAMES if name < 1 else f"{name}"), 10.0 * unit
            )
        found.close(10.0 * unit + 12)
        assert check(found, REALS_LOST).state not in ("passed", "failed"), unit
    assert check(found, REALS_LOST).state == "inconclusive"
    if known != ("one",):
        assert "approver who knows the sources waives" in check(found, NOT_ALONE).reason
        assert check(found, NOT_ALONE, **{NOT_ALONE: "our cameras"}).state == "waived"


def test_a_source_that_a_person_left_out_counts_nowhere_and_by_their_word_one_may_decide(compared):
    def filled(*without, known=("odd", *HONEST), **given):
        found, numbers = of_sources(known, without, **given), itertools.count()
        for unit, source in itertools.product(range(150), ("odd", "a name", *HONEST[:2])):
            said = "unknown" if source in ("odd", "a name") else "real"
            found.add(compared(next(numbers), "real", said, source), 10.0 * unit)
        found.close(1502)
        return check(found, REALS_LOST).state, found.left_out.get("a person left its source out", 0)

    assert filled() == ("failed", 0)  # two sources show it
    assert filled("odd") == ("inconclusive", 150)
    assert filled("odd", NEW_NAMES) == ("passed", 300)
    assert filled(NEW_NAMES, known=()) == ("undecided", 600)
    assert filled("odd", "a name", known=(), alone=True) == ("passed", 300)


def test_sources_that_agree_pass_and_fail_and_one_with_few_items_of_others_passes_nothing(compared):
    for said, state in (("real", "passed"), ("unknown", "failed")):
        found, numbers = of_sources(HONEST), itertools.count()
        for unit in range(150):
            for source in HONEST[: 2 if unit % 40 else 3]:
                found.add(compared(next(numbers), "real", said, source), 10.0 * unit)
        found.close(1502)
        assert check(found, REALS_LOST).state == state
    alone, numbers = of_sources(HONEST), itertools.count()
    for unit in range(300):
        for source in HONEST[: 1 if unit % 40 else 3]:
            alone.add(compared(next(numbers), "real", "real", source), 10.0 * unit)
    alone.close(3002)
    assert (check(alone, REALS_LOST).state, check(alone, REALS_LOST).reason) == (
        "inconclusive",
        "only one is below it",
    )


@pytest.mark.parametrize("of", [1, 2, 8])
def test_one_person_alone_cannot_say_away_what_counts_against_a_challenger(compared, of):
    """10 % of the reals are lost, and every so many of them are called a family that neither said."""
    lost = [f"forgewatch.media-0-{1000 * unit}" for unit in range(0, 400, 2)]
    labels = dict.fromkeys(lost[::of], "fake gan")
    found = evidence(labels)
    for unit in range(400):
        says = [("real", "real" if unit % 2 else "unknown"), *[("real", "real")] * 4]
        fill(found, compared, 1, says, first=unit)
    alone, together = (
        next(each for each in found.checks({}, by_one) if each.name == REALS_LOST)
        for by_one in (frozenset(labels), frozenset())
    )
    if of > 1:  # what is left still fails
        assert (alone.state, together.state) == ("failed", "failed")
    else:
        assert (alone.state, together.state) == ("inconclusive", "passed")
        assert alone.reason == (
            "one person alone judged 200 of 200 items against it: a second must judge them too"
        )
        assert found.contradictions() == {"camera": 200}


def test_a_waived_check_is_not_asked_for(compared):
    found = evidence()
    fill(found, compared, 30, [("real", "unknown")])
    assert check(found, REALS_LOST, **{REALS_LOST: "known"}).state == "waived"


def test_a_unit_is_bet_on_once_and_what_comes_after_is_left_out(compared):
    found = evidence()
    fill(found, compared, 3, [("real", "real")])
    found.add(compared(5, "real", "unknown"), 5.0)
    found.close(100)
    left_out = compared(7, "real", "real").model_copy(update={"left_out": "the stream was behind"})
    for number in (7, 8, 8):
        found.add(left_out.model_copy(update={"id": f"forgewatch.media-0-{number}"}), 105.0)
    found.close(120)
    assert (found.shared, check(found, REALS_LOST).units) == (3, 3)
    assert found.left_out == {"it came too late": 1, "it came before": 1, "the stream was behind": 2}


def test_each_cell_of_the_table_opens_its_items(compared):
    found = evidence({"forgewatch.media-0-0": "real"})
    fill(found, compared, 2, [("real", "unknown")])
    assert [(item.id, item.label) for item in found.items("real", "unknown")] == [
        ("forgewatch.media-0-1000", None),
        ("forgewatch.media-0-0", "real"),
    ]
    assert found.items("real", "real") == []


# Bets on means: fair while the claim holds, quick where it does not, late or early.
BOUNDS = st.floats(0.005, 0.9)


@given(BOUNDS, st.floats(0, 1), st.booleans())
def test_a_bet_pays_at_most_one_on_average_where_the_mean_is_on_the_claimed_side(bound, part, net):
    low = -1.0 if net else 0.0
    # Of all x with a mean of at most the bound, two points at the ends vary the most.
    ends, mean = np.array([low, 1.0]), low + part * (bound - low)
    chance = np.array([1 - mean, mean - low]) / (1 - low)
    pays = [Bets(np.array([bound]), low) for _ in ends]
    for bets, x in zip(pays, ends, strict=True):
        bets.bet(float(x))
    above = np.exp([bets.log_above[0] for bets in pays])
    assert chance @ above <= 1 + 1e-9
    mean = bound + part * (1 - bound)
    chance = np.array([1 - mean, mean - low]) / (1 - low)
    below = np.exp([bets.log_below[0] for bets in pays])
    assert chance @ below <= 1 + 1e-9


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(1, 5)), max_size=20))
def test_equal_x_may_be_bet_on_at_once(runs):
    at_once, singly = (Bets(np.array([0.03])) for _ in range(2))
    for x, times in runs:
        at_once.bet_below(x, times)
        for _ in range(times):
            singly.bet_below(x)
    np.testing.assert_allclose(at_once.log_below, singly.log_below, atol=1e-9)


@given(st.lists(st.floats(0, 1), max_size=60))
def test_the_interval_narrows_around_the_mean_and_its_ends_are_in_order(seen):
    bets = Bets(np.geomspace(0.001, 0.9, 30))
    for x in seen:
        bets.bet(x)
    low, high = interval(bets)
    assert 0 <= low <= high <= 1


def test_what_is_not_there_changes_nothing():
    two = Bets(np.array([0.03, 0.03]))
    two.bet(np.array([0.2, np.nan]))
    assert two.log_above[1] == pytest.approx(0)
    assert two.log_below[1] == pytest.approx(0)
    assert list(two.seen) == [1, 0]


def test_a_challenger_that_turns_bad_after_an_hour_of_good_is_noticed_within_twelve_units():
    bets = Bets(np.array([0.03]))
    for _ in range(360):
        bets.bet(0.0)
    assert bets.log_below[0] > LOG_20
    assert bets.log_above[0] < 0
    units = 0
    while bets.log_above[0] < np.log(1 / 0.004):
        bets.bet(0.8)
        units += 1
    assert units <= 12


def test_the_recall_of_declared_media_is_of_the_items_that_both_scored(compared):
    found = evidence()
    assert found.declared_recalls() == {}
    fill(found, compared, 4, [("real", "unknown"), ("blend", "blend"), ("error", "real")], declared=True)
    fill(found, compared, 4, [("real", "real")], first=4)
    recalls = found.declared_recalls()
    assert {role: (of.caught, of.items) for role, of in recalls.items()} == {
        "champion": (4, 8),
        "challenger": (8, 8),
    }
    assert 0.19 < recalls["champion"].low < 0.5 < recalls["champion"].high < 0.81
    assert (recalls["challenger"].low > 0.68, recalls["challenger"].high) == (True, 1)

"""What is believed of the topic: comparisons of this rollout, as a detector signs them."""

import copy
import itertools
import json
from contextlib import suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from deploy.rollouts.checks import REALS_LOST
from deploy.rollouts.evidence import RolloutEvidence
from deploy.rollouts.reader import InvalidComparisonError, parse_comparison
from detector.records import SIGNATURE, Comparison, in_share, sign
from tests.deploy.rollouts.conftest import BEGAN, CHALLENGER, CHAMPION, said

TOPIC, KEY, FAMILIES = "forgewatch.media", b"a token", ("blend", "swap")
SHARED = next(n for n in itertools.count() if in_share(f"{TOPIC}-0-{n}", 0.05))
NOW_S = BEGAN.timestamp() + 100


@pytest.fixture
def read(trial):
    """Reads a record as the controller does: the value, signed where no header is given."""

    def one(value, headers=None, at_s=NOW_S, keys=(KEY,)):
        if isinstance(value, Comparison):
            value = value.model_dump_json().encode()
        signed = [(SIGNATURE, sign(KEY, value))] if headers is None else headers
        return parse_comparison(value, signed, at_s, trial, FAMILIES, TOPIC, keys, NOW_S)

    return one


@pytest.fixture
def true(compared):
    """A comparison that is as it should be."""
    made = compared(SHARED, "real", "blend")
    return made


def changed(true, **fields):
    """A comparison's JSON with other fields, a dot between a field and one of its own."""
    found = json.loads(true.model_dump_json())
    for name, value in fields.items():
        of, _, field = name.rpartition("__")
        (found[of] if of else found)[field] = value
    return json.dumps(found).encode()


def test_a_signed_comparison_of_this_rollout_is_believed(read, true):
    assert read(true) == true
    assert read(true, headers=[], keys=()) == true
    assert read(true, keys=(b"an older token", KEY)) == true


@pytest.mark.parametrize("headers", [[], [(SIGNATURE, b"")], [(SIGNATURE, sign(b"another token", b"{}"))]])
def test_a_forged_comparison_is_not_believed(read, true, headers):
    with pytest.raises(InvalidComparisonError, match="not signed by a detector's token"):
        read(true, headers=headers)


def test_a_signature_of_another_comparison_is_none_of_this_one(read, true, compared):
    other = sign(KEY, compared(SHARED, "real", "real").model_dump_json().encode())
    with pytest.raises(InvalidComparisonError, match="not signed"):
        read(true, headers=[(SIGNATURE, other)])


def elsewhere(share):
    return next(id for n in itertools.count() if not in_share(id := f"{TOPIC}-0-{n}", share))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"id": f"another.topic-0-{SHARED}"}, "no item that both releases score"),
        ({"id": f"{TOPIC}-0-{SHARED} "}, "no item that both"),
        ({"id": f"{TOPIC}-0-0{SHARED}"}, "no item that both"),
        ({"id": f"{TOPIC}-0-{'9' * 4000}"}, "no item that both"),
        ({"id": "x"}, "no item that both"),
        ({"champion__fake_probability": float("nan")}, "finite scores"),
        ({"challenger__energy": float("inf")}, "finite scores"),
        ({"challenger__unknown_score": None}, "finite scores"),
        ({"challenger__label": None}, "says a label"),
        ({"champion__fake_probability": 1.5}, "1.5 is no probability"),
        ({"challenger__model_s": -1}, "no item takes -1.0 s"),
        ({"challenger__model_s": float("nan")}, "no item takes nan s"),
        ({"challenger__family": "x" * 4000}, "neither release knows a family 'xxx"),
        ({"answered": "both"}, "it is no comparison"),
        ({"rollout": 7}, "it is of the rollout 7, and not of 0"),
        ({"rollout": None}, "it is of the rollout None"),
        ({"source": "s" * 1_000_000}, "has 1,000,.* bytes, and a comparison 16,384 at most"),
    ],
)
def test_what_no_detector_says_is_not_believed_in_one_short_line(read, true, fields, why):
    with pytest.raises(InvalidComparisonError, match=why) as raised:
        read(changed(true, **fields))
    assert len(str(raised.value)) < 200
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("value", [b"", b"\xff\xfe", b"[]", b"{" * 9000])
def test_what_is_no_comparison_is_not_believed(read, value):
    with pytest.raises(InvalidComparisonError, match="it is no comparison"):
        read(value)


texts = st.text(st.characters(), max_size=1100)
reals = st.floats() | st.integers(-(2**1100), 2**1100) | st.none()
fields = st.fixed_dictionaries(
    {},
    optional={"source": texts, "digest": texts, "id": texts, "answered": st.sampled_from(["challenger", ""])}
    | {
        f"{of}__{name}": values
        for of in ("champion", "challenger")
        for name, values in {
            "label": st.sampled_from(["real", "fake", "unknown", None, "other"]),
            "family": texts | st.sampled_from([*FAMILIES, None]),
            "fake_probability": reals,
            "energy": reals,
            "unknown_score": reals,
            "model_s": reals,
            "error": texts | st.none(),
        }.items()
    },
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(fields, st.integers(-(2**63), 2**63 - 1) | st.just(NOW_S * 1000))
@example({"source": "".join(chr(0x4E00 + n) for n in range(1000))}, NOW_S * 1000)
@example({"source": "door\x00", "champion__error": "\x00"}, NOW_S * 1000)
@example({"champion__error": "", "challenger__error": ""}, NOW_S * 1000)
@example({"champion__energy": 1e308, "challenger__unknown_score": -1e308}, NOW_S * 1000)
def test_whatever_a_record_says_it_is_not_believed_or_the_evidence_takes_it(read, true, fields, at_ms):
    evidence = RolloutEvidence(FAMILIES, FAMILIES, {})
    with suppress(InvalidComparisonError):
        found = read(changed(true, **fields), at_s=at_ms / 1000)
        if found is not None:
            evidence.add(found, at_ms / 1000)
    evidence.add(true, NOW_S)
    evidence.close(NOW_S + 3600)
    assert evidence.shared == 1  # the same item twice is one
    assert evidence.checks({})
    evidence.model_s()  # of none, where the item is believed and failed with both


def test_an_item_that_only_one_release_scores_is_not_believed(trial, true, read):
    quarter = trial.model_copy(update={"plan": trial.plan.model_copy(update={"canary": (0.05, 0.25)})})
    for share, by, why in ((0.25, "champion", "both"), (0.25, "challenger", "both")):
        value = changed(true, id=elsewhere(share), answered=by)
        with pytest.raises(InvalidComparisonError, match=why):
            parse_comparison(value, [], NOW_S, quarter, FAMILIES, TOPIC, (), NOW_S)
    few = trial.model_copy(update={"plan": trial.plan.model_copy(update={"shadow": 1, "canary": (0.05,)})})
    value = changed(true, id=elsewhere(0.05), answered="challenger")
    with pytest.raises(InvalidComparisonError, match="no item that the challenger answers"):
        parse_comparison(value, [], NOW_S, few, FAMILIES, TOPIC, (), NOW_S)


def test_a_record_of_another_rollout_is_none_of_this_one(read, true):
    assert read(changed(true, champion__release=CHALLENGER)) is None
    assert read(true, at_s=BEGAN.timestamp() - 1) is None  # the same two, before
    assert read(true, at_s=0.0) is None
    with pytest.raises(InvalidComparisonError, match="from the future"):
        read(true, at_s=NOW_S + 3600)


# Evidence is a function of what lies on the topic: however it was evidence_of, and whenever somebody looked.
KNOWN = ("blend", "swap")
WORDS = ("real", "real", "real", "unknown", "blend", "error")


def items_of(seed, units=40, lost=0.0):
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


def new(labels=None, known=("camera",)):
    found = RolloutEvidence(KNOWN, (*KNOWN, "gan"), labels or {}, known)
    found.steps_began([105.0, 233.0])
    return found


def evidence_of(items, ends):
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


@pytest.mark.slow
@given(st.integers(0, 10**6), st.lists(st.integers(0, 240), max_size=12), st.sampled_from([0.0, 0.1]))
def test_the_checks_are_the_same_however_the_topic_was_read(seed, ends, lost):
    items = items_of(seed, lost=lost)
    at_once, in_parts = evidence_of(items, []), evidence_of(items, ends)
    assert in_parts.left_out["it came too late"] == 0
    assert at_once.checks({}) == in_parts.checks({})
    assert at_once.table == in_parts.table


def test_labels_that_say_what_the_champion_said_leave_the_bets_as_they_were():
    items = items_of(3)
    reals = {each.id: "real" for each, _ in items if each.champion.label == "real"}
    first, again = new(), new(reals | {"media-0-99999": "real"})
    for found in (first, again):
        for item in items:
            found.add(*item)
        found.close(1e6)
    assert first.checks({}) == again.checks({})


@settings(max_examples=10)
@given(st.integers(0, 10**6), st.data())
def test_an_item_that_is_repeated_counts_once(seed, data):
    items = items_of(seed, units=10)
    again = [(place, items[place]) for place in data.draw(st.lists(st.integers(0, 59), max_size=9))]
    twice = items.copy()
    for place, (comparison, at_s) in sorted(again, reverse=True, key=lambda one: one[0]):
        twice.insert(place + 1, (comparison, at_s))
    once, repeated = evidence_of(items, []), evidence_of(twice, [])
    assert repeated.left_out["it came before"] == len(again)
    assert once.checks({}) == repeated.checks({})
    assert once.shared == repeated.shared


@pytest.mark.parametrize("units_after", [0, 400])
def test_a_check_that_failed_stays_failed_whenever_somebody_looks(units_after, compared):
    found = new()
    for unit in range(12 + units_after):
        said = "unknown" if unit < 12 else "real"
        found.add(compared(unit, "real", said), 10.0 * unit)
    found.close(1e6)
    (reals,) = (check for check in found.checks({}) if check.name == REALS_LOST)
    assert reals.state == "failed"


def test_a_step_that_begins_is_known_to_the_bets_once(compared):
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

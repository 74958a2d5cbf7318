from datetime import UTC, datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import func, select
from verdicts import make_item, make_verdict

from ingest.records import InRecord
from memory.acts import acts_after
from memory.estimate import audits as audits_module
from memory.estimate import sums
from memory.estimate.accuracy import Residual, accuracy, correct
from memory.estimate.audits import CANNOT_SAY, AuditError, label_audit, waiting
from memory.estimate.sums import DAY_MS, is_drawn, note_estimates
from memory.labels import LabelError
from memory.schema import audits, estimate_sums

RELEASE, DAY = "a" * 64, 20_000
DATABASES = ("sqlite_url", "postgresql_url")


def said(offset, what="real", day=DAY, source="camera", **changes):
    """A verdict that is right with a probability of 0.9, as it was written."""
    if what not in ("real", "unknown"):
        changes |= {"family": what, "family_probability": 0.9, "fake_probability": 0.95}
    label = what if what in ("real", "unknown") else "fake"
    verdict = make_verdict(
        make_item(offset, source=source),
        **{"label": label, "fake_probability": 0.1, "release": RELEASE} | changes,
    )
    return InRecord("verdicts", 0, offset, round(day * DAY_MS), None, b"", ()), verdict


def note(store, found, weekly=0):
    with store.write_unversioned() as connection:
        note_estimates(connection, found, weekly)


def now(store, days=7, day=DAY):
    with store.read() as connection:
        return accuracy(connection, RELEASE, round(day * DAY_MS), days)


def queue(store):
    with store.read() as connection:
        return waiting(connection, 10_000)


def test_probabilities_are_summed_by_class_and_source_and_unknowns_stand_apart(store):
    note(store, [said(0), said(1), said(2, "blended"), said(3, "unknown")])
    note(store, [said(4, source="phone"), said(5, day=DAY - 10), said(6, release="b" * 64)])
    found = now(store)
    assert (found.unknown, found.over_all.items) == (1, 4)
    assert {name: each.items for name, each in found.classes.items()} == {"blended": 1, "real": 3}
    assert {name: each.items for name, each in found.sources.items()} == {"camera": 3, "phone": 1}
    assert (found.over_all.corrected, found.over_all.lacking) == (None, 20)  # no audit
    assert now(store, days=11).over_all.items == 5


@pytest.mark.slow
def test_so_many_are_drawn_a_week_as_are_wanted_once_the_traffic_is_known(store):
    for hour in range(24 * 14):
        note(store, [said(100 * hour + n, day=DAY + hour / 24) for n in range(100)], weekly=200)
    with store.read() as connection:
        drawn_ = connection.scalar(select(func.count()).where(audits.c.day >= DAY + 7))
        first = connection.scalar(select(func.count()).where(audits.c.day < DAY + 7))
    assert 150 < drawn_ < 250
    assert first < 350


def test_the_same_key_draws_the_same_ids_and_another_key_others():
    ids = [f"media-0-{n}" for n in range(2000)]
    one, again, other = ([id_ for id_ in ids if is_drawn(key, id_, 0.1)] for key in (b"k", b"k", b"l"))
    assert one == again != other
    assert 150 < len(one) < 250
    assert set(one) <= {id_ for id_ in ids if is_drawn(b"k", id_, 0.2)}


def test_labels_correct_the_estimate_and_are_on_record(store):
    note(store, [said(n) for n in range(20)], weekly=10_000)  # all are drawn
    assert now(store).over_all.corrected is None  # today's drawn ones wait
    for n, entry in enumerate(queue(store)):
        label_audit(store, entry.id, "blended" if n < 10 else "real", "ann")
    found = now(store).over_all
    assert found.corrected.value == pytest.approx(0.5)
    assert found.corrected.low < 0.5 < found.corrected.high < 0.9
    assert (found.audited, found.audited_items, queue(store)) == (20, 20, [])
    with pytest.raises(AuditError, match="was called blended by ann already"):
        label_audit(store, "media-0-0", "blended", "bea")
    with store.read() as connection:
        act = acts_after(connection, 0, 1)[0]
    assert (act.actor, act.action, act.details["label"]) == ("ann", "audit", "blended")


def test_a_later_label_replaces_the_former_for_a_week_and_both_are_on_record(store, monkeypatch):
    note(store, [said(n) for n in range(20)], weekly=10_000)
    for day, what in ((0, "blended"), (6.9, "real")):
        monkeypatch.setattr(audits_module, "now_ms", lambda day=day: round((DAY + day) * DAY_MS))
        for n in range(20):
            done = label_audit(store, f"media-0-{n}", what, "ann")
    assert (done.label, done.instead_of) == ("real", "blended")
    assert now(store).over_all.corrected.value == pytest.approx(1.0)
    assert now(store).over_all.audited == 20
    monkeypatch.setattr(audits_module, "now_ms", lambda: (DAY + 7) * DAY_MS)
    with pytest.raises(AuditError, match="was called real more than 7 days ago"):
        label_audit(store, "media-0-0", "blended", "ann")
    with store.read() as connection:
        acts = [act for act in acts_after(connection, 0, 99) if act.subject == "media-0-0"]
    assert [(act.details["label"], act.details.get("instead_of")) for act in acts] == [
        ("blended", None),
        ("real", "blended"),
    ]


def test_the_audit_speaks_only_for_days_of_which_all_that_was_drawn_is_labelled(store):
    note(store, [said(n, day=DAY - 1) for n in range(5)], weekly=10_000)
    note(store, [said(n) for n in range(5, 40)], weekly=10_000)
    for entry in queue(store)[:37]:
        label_audit(store, entry.id, "real", "ann")
    found = now(store)
    assert (found.over_all.audited, found.over_all.audited_items, found.over_all.lacking) == (5, 5, 15)
    assert found.through == datetime.fromtimestamp(DAY * DAY_MS / 1000, UTC)


def test_what_cannot_be_said_widens_the_interval(store):
    note(store, [said(n) for n in range(40)], weekly=10_000)
    for n, entry in enumerate(queue(store)):
        label_audit(store, entry.id, CANNOT_SAY if n % 2 else "real", "ann")
    found = now(store).over_all
    assert found.cannot_say == 20
    assert found.corrected.low < 0.5
    assert found.corrected.high == 1


def test_a_name_that_is_none_and_an_item_that_was_not_drawn_are_refused(store):
    note(store, [said(0)], weekly=10_000)
    for what, error in (("ignore", AuditError), ("No Name", LabelError), ("unknown", LabelError)):
        with pytest.raises(error):
            label_audit(store, "media-0-0", what, "ann")
    with pytest.raises(AuditError, match="was not drawn"):
        label_audit(store, "media-0-1", "real", "ann")


def test_no_share_is_told_of_fewer_than_twenty_labelled_items(store):
    note(store, [said(n, source="phone" if n < 15 else "camera") for n in range(36)], weekly=10_000)
    for entry in queue(store):
        label_audit(store, entry.id, "real", "ann")
    found = now(store).sources
    told = found["phone"].corrected, found["phone"].not_known
    assert told == (None, "not known: label 5 drawn items to find out")
    assert (found["camera"].lacking, found["camera"].corrected.value) == (0, pytest.approx(1))


def test_sources_beyond_the_most_are_counted_together_and_old_days_leave(store, monkeypatch):
    monkeypatch.setattr(sums, "MAX_SOURCES", 2)
    note(store, [said(n, source=f"source-{n % 5}") for n in range(10)])
    assert {name: each.items for name, each in now(store).sources.items()} == {
        "": 6,
        "source-0": 2,
        "source-1": 2,
    }
    note(store, [said(10, day=DAY + sums.KEPT_DAYS + 1)])
    with store.read() as connection:
        assert connection.scalar(select(func.count()).select_from(estimate_sums)) == 1


def residuals(right, probability, chance):
    each = right - probability
    return [Residual(float(r), float(r), chance) for r in each]


def stream(rng, items, shift):
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

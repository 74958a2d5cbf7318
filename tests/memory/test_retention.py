import sys
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pictures import drawn, hashes_of
from PIL import Image
from sqlalchemy import create_engine

from memory import retention
from memory.labels import LabelError, label, undo
from memory.retention import MOST_ALIKE, Retention, beyond_sources, purge_sources, sweep, with_room
from memory.rows import select_exemplars
from memory.schema import exemplars

pytestmark = pytest.mark.slow

START = datetime(2026, 1, 1, tzinfo=UTC)
DAYS = 30.0
ROUND_S = 60.0


@dataclass
class Host:
    """A host's two clocks: time passes on both, and the wall clock may be wrong by some days."""

    seconds: float = 0.0
    wrong_by_days: float = 0.0

    def now(self):
        return START + timedelta(seconds=self.seconds, days=self.wrong_by_days)

    def retention(self):
        return Retention(DAYS, lambda: round(self.now().timestamp() * 1000), lambda: self.seconds)


def shelf(store, name):
    with store.read() as connection:
        return [e.id for e in select_exemplars(connection, shelf=name)]


@pytest.fixture
def whole_rounds(monkeypatch):
    """Rounds that may purge everything at once."""
    monkeypatch.setattr(retention, "MAX_PURGED_SHARE", 1.0)


@pytest.mark.usefixtures("whole_rounds")
def test_unlabelled_and_ignored_items_are_purged_in_time_and_labelled_stay(store, crops, fill, make):
    fill([make(i, received_at=START) for i in range(9)])
    label(store, ["media-0-0", "media-0-1"], "gan", "ada")
    label(store, ["media-0-2"], "ignore", "ada")
    host = Host()
    purging = host.retention()
    assert purging.purge(store, crops) == 0
    host.seconds = DAYS * 24 * 3600
    assert purging.purge(store, crops) == 0
    host.seconds += 1
    assert purging.purge(store, crops) == 7
    assert len(shelf(store, "dropped")) == 7
    assert len(list(crops.digests())) == 2
    host.seconds *= 20
    assert purging.purge(store, crops) == 0


@pytest.mark.slow
def test_a_round_purges_one_in_a_hundred_at_most_and_the_oldest_first(store, crops, fill, make):
    fill([make(i, received_at=START + timedelta(seconds=-i)) for i in range(250)])
    fill([make(999, received_at=START + timedelta(days=DAYS + 1))])
    host = Host(seconds=(DAYS + 1) * 24 * 3600)
    purging = host.retention()
    rounds = [purging.purge(store, crops)]
    assert sorted(shelf(store, "dropped")) == ["media-0-248", "media-0-249"]
    while rounds[-1]:
        rounds.append(purging.purge(store, crops))
    assert max(rounds) == 2
    assert shelf(store, "unknown") == ["media-0-999"]


@pytest.mark.usefixtures("whole_rounds")
@pytest.mark.parametrize("days", [31, -31, 4000])
def test_a_clock_that_is_wrong_for_one_round_purges_nothing(store, crops, fill, make, days):
    host = Host()
    purging = host.retention()
    for number in range(10):
        fill([make(number, received_at=host.now())])
        host.wrong_by_days = days if number == 8 else 0
        assert purging.purge(store, crops) == 0
        host.seconds, host.wrong_by_days = host.seconds + ROUND_S, 0
    assert len(shelf(store, "unknown")) == 10
    # The control: once the time has really passed, all are old.
    host.seconds = DAYS * 24 * 3600 + 12 * ROUND_S
    assert purging.purge(store, crops) == 10


def test_a_wrong_clock_that_stamped_an_item_costs_one_in_a_hundred_at_most(store, crops, fill, make):
    host = Host()
    purging = host.retention()
    fill([make(i, received_at=START) for i in range(300)])
    host.wrong_by_days = 31
    fill([make(999, received_at=host.now())])
    assert purging.purge(store, crops) == 3
    host.wrong_by_days = 0
    for _ in range(5):
        host.seconds += ROUND_S
        assert purging.purge(store, crops) == 0
    host.wrong_by_days = 30.9  # the item of the future is no witness for a second wrong clock
    assert purging.purge(store, crops) == 0


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.floats(0, 3600), st.floats(-5000, 5000)), max_size=12))
def test_however_the_clock_jumps_nothing_goes_before_its_time_passed(store, crops, fill, make, rounds):
    fill([make(i, received_at=START) for i in range(3)])
    host = Host()
    purging = host.retention()
    for passed_s, wrong_by_days in rounds:
        host.seconds += passed_s
        host.wrong_by_days = wrong_by_days
        assert purging.purge(store, crops) == 0


def test_a_process_that_starts_under_a_wrong_clock_purges_nothing(store, crops, fill, make):
    fill([make(i, received_at=START) for i in range(3)])
    host = Host(wrong_by_days=400)
    assert host.retention().purge(store, crops) == 0


@pytest.mark.usefixtures("whole_rounds")
def test_crops_that_two_items_share_stay_as_long_as_one_needs_them(store, crops, fill, make):
    same = make(1).crops
    late = START + timedelta(days=DAYS + 1)
    fill([make(1, crops=same, received_at=START), make(2, crops=same, received_at=late)])
    assert Host(seconds=(DAYS + 2) * 24 * 3600).retention().purge(store, crops) == 1
    with store.read() as connection:
        (left,) = select_exemplars(connection, shelf="unknown")
    np.testing.assert_array_equal(crops.load(str(left.crops_digest)), same)


@pytest.mark.usefixtures("whole_rounds")
def test_what_was_purged_cannot_be_labelled_and_an_undo_does_not_bring_it_back(store, crops, fill, make):
    fill([make(i, received_at=START) for i in range(5)])
    number = label(store, ["media-0-0", "media-0-1"], "ignore", "ada")
    fill([make(9, received_at=START + timedelta(days=DAYS + 1))])
    host = Host(seconds=(DAYS + 1) * 24 * 3600)
    assert host.retention().purge(store, crops) == 5
    with pytest.raises(LabelError, match="purged"):
        label(store, ["media-0-0"], "real", "ada")
    undo(store, number, "ada")
    assert len(shelf(store, "dropped")) == 5


def test_crops_without_a_row_are_swept_and_others_are_not(store, crops, fill, make):
    fill([make(1)])
    orphan = crops.put(make(2).crops)
    assert sweep(store, crops) == 1
    assert not crops.holds(orphan)
    assert sweep(store, crops) == 0
    assert len(list(crops.digests())) == 1


NEAR_IDENTICAL = 308
"""as an audit sent them"""
DATABASES = ("sqlite_url", "postgresql_url")


def near_identical(make, first, past):
    """Pictures that differ in noise alone; all else of them differs as much as it can."""
    shown = np.asarray(drawn(0), np.int16)
    noise = np.random.default_rng(first)
    pictures = (
        Image.fromarray(np.clip(shown + noise.integers(-4, 5, shown.shape), 0, 255).astype(np.uint8))
        for _ in range(first, past)
    )
    return [make(number, picture_hashes=hashes_of(picture)) for number, picture in enumerate(pictures, first)]


def send(fill, items, most_alike):
    return [fill(items[first : first + 32], most_alike=most_alike) for first in range(0, len(items), 32)]


@pytest.mark.parametrize("most_alike", [MOST_ALIKE, sys.maxsize])
def test_of_many_near_identical_pictures_a_few_are_exemplars(store, fill, make, most_alike):
    """With the negative control: without the bound each is one."""
    done = send(fill, near_identical(make, 0, NEAR_IDENTICAL), most_alike)
    kept = min(most_alike, NEAR_IDENTICAL)
    assert sum(len(each.new) for each in done) == kept
    assert sum(each.alike for each in done) == NEAR_IDENTICAL - kept
    assert sum(each.known for each in done) == 0
    with store.read() as connection:
        assert len(select_exemplars(connection)) == kept


def test_what_is_like_none_of_them_is_remembered_among_them(store, fill, make):
    send(fill, near_identical(make, 0, 100), MOST_ALIKE)
    others = [make(number) for number in range(500, 510)]
    mixed = [each for pair in zip(near_identical(make, 100, 110), others, strict=True) for each in pair]
    assert set(fill(mixed, most_alike=MOST_ALIKE).new) == {other.id for other in others}


def test_the_stream_read_again_from_its_beginning_gives_the_same_rows(store, fill, make):
    items = [*near_identical(make, 0, 64), *(make(number) for number in range(500, 532))]
    send(fill, items, MOST_ALIKE)
    with store.read() as connection:
        before = select_exemplars(connection)
    again = send(fill, items, MOST_ALIKE)
    assert sum(len(each.new) for each in again) == 0
    assert sum(each.known + each.alike for each in again) == len(items)
    with store.read() as connection:
        assert select_exemplars(connection) == before


def test_a_label_makes_no_room_for_more_of_the_same(store, fill, make):
    kept = [each for done in send(fill, near_identical(make, 0, 64), MOST_ALIKE) for each in done.new]
    label(store, kept, "sharpened", "ada")
    assert send(fill, near_identical(make, 64, 96), MOST_ALIKE)[0].new == ()


@given(st.lists(st.sampled_from("abc"), max_size=40), st.integers(1, 6))
def test_of_new_items_the_first_of_each_group_have_room(groups, most):
    engine = create_engine("sqlite://")
    with engine.begin() as connection:
        exemplars.create(connection)
        room = with_room(connection, groups, most)
    engine.dispose()
    for group in set(groups):
        of_group = [fits for name, fits in zip(groups, room, strict=True) if name == group]
        assert of_group == [place < most for place in range(len(of_group))]


def of_source(make, source, first, past):
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    return [
        make(number, source=source, received_at=begin + timedelta(seconds=number))
        for number in range(first, past)
    ]


@pytest.mark.parametrize("most", [10, 1000])
def test_of_a_source_the_newest_wait_and_other_sources_keep_theirs(store, crops, fill, make, most):
    """With the negative control: without the bound all of them wait."""
    flood, quiet = of_source(make, "flood", 0, 30), of_source(make, "quiet", 100, 105)
    fill([*flood, *quiet])
    kept = flood[-min(most, 30) :]
    assert purge_sources(store, crops, most) == 30 - len(kept)
    with store.read() as connection:
        waiting = {each.id: each.crops_digest for each in select_exemplars(connection, shelf="unknown")}
        assert waiting.keys() == {each.id for each in [*kept, *quiet]}
        assert set(crops.digests()) == set(waiting.values())
    assert purge_sources(store, crops, most) == 0


def test_what_a_person_has_named_counts_for_nothing_and_stays(store, crops, fill, make):
    fill(of_source(make, "flood", 0, 30))
    label(store, [f"media-0-{number}" for number in range(15)], "sharpened", "ada")
    assert purge_sources(store, crops, 10) == 5
    with store.read() as connection:
        assert len(select_exemplars(connection, family="sharpened")) == 15
        assert beyond_sources(connection, 10) == []

"""Neither one look-alike group nor one source takes the shelves for itself."""

import sys
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pictures import drawn, hashes_of
from PIL import Image
from sqlalchemy import create_engine

from memory.bounds import MOST_ALIKE, beyond_sources, with_room
from memory.labels import label
from memory.retention import purge_sources
from memory.rows import select_exemplars
from memory.schema import exemplars

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

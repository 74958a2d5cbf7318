from verdicts import make_item, make_verdict

from detector.records import Withdrawal
from ingest.records import InRecord
from memory import verdict_index
from memory.verdict_index import (
    WITHDRAWN,
    corrected_among,
    count_over_time,
    count_verdicts,
    find_superseded,
    find_verdict,
    forget_before,
    newest_verdicts,
    note_verdicts,
)

FIRST, SECOND = "a" * 64, "b" * 64
DATABASES = ("sqlite_url", "postgresql_url")


def note(store, *said):
    """Note verdicts: (partition, offset, offset of the item, release, label)."""
    found = []
    for partition, offset, item, release, label in said:
        verdict = make_verdict(make_item(item), release=release, label=label)
        found.append((InRecord("verdicts", partition, offset, 1000 + offset, None, b"", ()), verdict))
    with store.write_unversioned() as connection:
        note_verdicts(connection, found)


def test_a_verdict_is_found_by_its_item_and_nothing_else_is_taken_for_one(store):
    note(store, (2, 7, 10, FIRST, "real"), (0, 8, 11, SECOND, "unknown"))
    with store.read() as connection:
        found = find_verdict(connection, "media-0-11", "media")
        assert (found.partition, found.offset, found.at_ms, found.label) == (0, 8, 1008, "unknown")
        assert found.release == "b" * 12
        for other in (
            "media-0-12",
            "media-1-11",
            "other-0-11",
            "media-0-11 ",
            "media",
            "",
            "media-0-" + "9" * 30,
        ):
            assert find_verdict(connection, other, "media") is None


def test_of_an_item_that_was_answered_twice_the_newest_verdict_is_found(store):
    note(store, (0, 7, 10, FIRST, "real"), (0, 8, 10, SECOND, "fake"))
    with store.read() as connection:
        assert find_verdict(connection, "media-0-10", "media").offset == 8


def test_a_topic_that_was_made_anew_replaces_what_lay_at_its_offsets(store):
    note(store, (0, 0, 10, FIRST, "real"), (0, 1, 11, FIRST, "real"), (1, 0, 12, FIRST, "real"))
    note(store, (0, 0, 20, SECOND, "fake"))
    with store.read() as connection:
        found = {n for n in (10, 11, 12, 20) if find_verdict(connection, f"media-0-{n}", "media")}
    assert found == {11, 12, 20}


def test_the_verdicts_of_a_release_are_counted_by_label_and_the_newest_come_first(store):
    note(store, *((0, n, n, FIRST, "real" if n % 3 else "fake") for n in range(9)))
    note(store, (0, 9, 9, SECOND, "unknown"))
    with store.read() as connection:
        assert count_verdicts(connection, FIRST) == {"real": 6, "fake": 3}
        assert [found.offset for found in newest_verdicts(connection, 3, FIRST)] == [8, 7, 6]
        assert count_verdicts(connection, "c" * 64) == {}


def test_verdicts_over_time_are_counted_in_parts_of_the_shortest_span_that_has_them(store):
    note(store, (0, 10, 0, FIRST, "real"), (0, 11, 1, FIRST, "fake"), (0, 109, 2, FIRST, "unknown"))
    with store.read() as connection:
        since, counts = count_over_time(connection, 1110, (50, 100, 5000), 4)
        assert (since, counts) == (1010, [{"real": 1, "fake": 1}, {}, {}, {"unknown": 1}])
        assert count_over_time(connection, 10**6, (50, 100), 4) == (10**6 - 100, [{}, {}, {}, {}])


def test_what_lies_before_an_offset_is_forgotten_a_part_at_a_time(store, monkeypatch):
    monkeypatch.setattr(verdict_index, "FORGOTTEN_AT_ONCE", 4)
    note(store, *((partition, n, n, FIRST, "real") for partition in (0, 1) for n in range(10)))
    forgotten = []
    for _ in range(4):
        with store.write_unversioned() as connection:
            forgotten.append(forget_before(connection, 0, 7))
    assert forgotten == [4, 3, 0, 0]
    with store.read() as connection:
        assert count_verdicts(connection, FIRST) == {"real": 13}


def test_a_correction_takes_the_place_of_the_verdict_that_it_replaces_and_a_withdrawal_counts_as_none(store):
    note(store, (0, 1, 10, FIRST, "unknown"), (0, 2, 11, FIRST, "real"), (0, 3, 12, FIRST, "real"))
    corrected = make_verdict(make_item(10), release=SECOND, label="real", supersedes=FIRST)
    withdrawal = Withdrawal(id="media-0-11", item=make_item(11), release=FIRST, reason="the media is gone")
    records = [InRecord("verdicts", 0, offset, 1000 + offset, None, b"", ()) for offset in (4, 5)]
    with store.write_unversioned() as connection:
        note_verdicts(connection, list(zip(records, (corrected, withdrawal), strict=True)))
    with store.read() as connection:
        now = find_verdict(connection, "media-0-10", "media")
        assert (now.offset, now.label) == (4, "real")
        assert [each.offset for each in find_superseded(connection, now)] == [1]
        assert find_verdict(connection, "media-0-11", "media").label == WITHDRAWN
        assert find_verdict(connection, "media-0-12", "media").label == "real"
        assert count_verdicts(connection, FIRST) == {"superseded": 2, "real": 1}
        assert [each.offset for each in newest_verdicts(connection, 9)] == [5, 4, 3]
        assert corrected_among(connection, newest_verdicts(connection, 9)) == {(0, 10), (0, 11)}

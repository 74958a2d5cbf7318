import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.dead_letters import PREFIX, dead_letter
from ingest.records import InRecord, MediaError
from ingest.replay import REPLAY_COUNT, REPLAY_OF, ReplayError, build_replay, is_cut, origin, replay_count
from ingest.settings import IngestSettings

SETTINGS = IngestSettings()
Headers = list[tuple[str, bytes]]


def letter_of(key: bytes | None, value: bytes | None, headers: Headers, offset: int = 5) -> InRecord:
    """A dead letter as it is read again."""
    record = InRecord("media", 3, 14, 0, key, value, tuple(headers))
    letter = dead_letter(record, "decode", MediaError("damaged", "no picture"), SETTINGS)
    return InRecord(SETTINGS.dead_letters_topic, 1, offset, 0, letter.key, letter.value, letter.headers)


optional = st.none() | st.binary(max_size=50)
names = st.text(max_size=9)


@given(optional, optional, st.lists(st.tuples(names, st.binary(max_size=9))), st.integers(1, 4))
def test_however_often_it_fails_a_record_is_replayed_as_it_came_and_counted(key, value, headers, times):
    letter = letter_of(key, value, headers)
    for count in range(1, times + 1):
        again = build_replay(letter, letter)
        assert (again.topic, again.key, again.value) == ("media", key, value)
        marks = [(REPLAY_OF, letter.id.encode()), (REPLAY_COUNT, str(count).encode())]
        assert list(again.headers) == headers + marks
        letter = letter_of(again.key, again.value, list(again.headers), offset=5 + count)
        assert replay_count(letter) == count


@pytest.mark.parametrize("said", [b"", b"-1", b"1e9", b"99999", "²".encode(), b"\xff"])
def test_a_count_that_a_producer_made_up_is_none(said):
    assert replay_count(letter_of(b"k", b"v", [(REPLAY_COUNT, said)])) == 0


def test_a_letter_that_was_too_large_to_be_whole_says_so_and_where_the_original_lies():
    assert not is_cut(letter_of(b"k", b"v", []))
    large = letter_of(b"k", b"v" * (SETTINGS.max_record_bytes + 1), [])
    assert is_cut(large)
    assert origin(large) == ("media", 3, 14)
    original = InRecord("media", 3, 14, 0, b"k", b"all of it", (("a", None),))
    again = build_replay(large, original)
    assert (again.value, again.headers[0]) == (b"all of it", ("a", b""))


def test_a_producer_s_own_errors_are_not_replayed():
    large = letter_of(b"k", b"v" * (SETTINGS.max_record_bytes + 1), [])
    forged = ((f"{PREFIX}topic", b"other"), ("a", b"b"), (f"{PREFIX}offset".upper(), b"0"))
    again = build_replay(large, InRecord("media", 3, 14, 0, b"k", b"all of it", forged))
    assert (again.topic, again.headers[0]) == ("media", ("a", b"b"))
    assert [name for name, _ in again.headers if name.lower().startswith(PREFIX)] == []


@pytest.mark.parametrize("headers", [[], [(f"{PREFIX}topic", b"media"), (f"{PREFIX}partition", b"x")]])
def test_what_is_no_dead_letter_of_ours_is_refused(headers):
    stranger = InRecord(SETTINGS.dead_letters_topic, 0, 0, 0, None, b"v", tuple(headers))
    with pytest.raises(ReplayError, match="does not say where it came from"):
        build_replay(stranger, stranger)

from hypothesis import given
from hypothesis import strategies as st

from ingest.dead_letters import dead_letter
from ingest.kafka.sink import record_bytes
from ingest.records import InRecord
from ingest.sandbox.decode import DecodeError
from ingest.settings import IngestSettings

SETTINGS = IngestSettings()
optional = st.none() | st.binary(max_size=50)


def record(key: bytes | None, value: bytes | None, *headers: tuple[str, bytes | None]) -> InRecord:
    return InRecord("media", 3, 14, 0, key, value, headers)


@given(optional, optional, st.lists(st.tuples(st.text(max_size=9), st.binary(max_size=9))), st.text())
def test_key_value_and_headers_stay_byte_for_byte(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes]], text: str
) -> None:
    letter = dead_letter(record(key, value, *headers), "decode", DecodeError("corrupt", text), SETTINGS)
    assert (letter.key, letter.value) == (key, value)
    assert list(letter.headers[: len(headers)]) == headers


def test_the_headers_say_what_went_wrong_and_where() -> None:
    letter = dead_letter(record(None, b"v"), "decode", DecodeError("timeout", "too slow"), SETTINGS)
    prefix = "__forgewatch.errors."
    assert {name.removeprefix(prefix): raw.decode() for name, raw in letter.headers} == {
        "topic": "media",
        "partition": "3",
        "offset": "14",
        "stage": "decode",
        "exception": "DecodeError",
        "reason": "timeout",
        "message": "too slow",
    }
    assert letter.topic == SETTINGS.dead_letters_topic


def test_texts_are_cut_at_a_kilobyte_between_characters() -> None:
    letter = dead_letter(record(None, None), "decode", ValueError("ä" * 5000), SETTINGS)
    text = dict(letter.headers)["__forgewatch.errors.message"]
    assert len(text) == 1024
    assert text.decode() == "ä" * 512
    assert dict(letter.headers)["__forgewatch.errors.reason"] == b"unexpected"


def test_a_null_header_becomes_empty_and_is_named() -> None:
    letter = dead_letter(record(b"k", b"v", ("a", None), ("b", b"")), "decode", ValueError(), SETTINGS)
    assert letter.headers[:2] == (("a", b""), ("b", b""))
    assert dict(letter.headers)["__forgewatch.errors.null_headers"] == b"a"


def test_the_largest_record_of_the_media_topic_fits_with_its_errors() -> None:
    value = b"x" * (SETTINGS.max_media_bytes - 400)
    letter = dead_letter(record(b"key", value, ("h", b"y" * 300)), "s", ValueError("z" * 9999), SETTINGS)
    assert letter.value == value
    assert record_bytes(letter.key, letter.value, letter.headers) <= SETTINGS.max_record_bytes


def test_a_record_that_a_compressed_batch_made_too_large_is_still_answered() -> None:
    huge = b"0" * 5_000_000
    letters = [
        dead_letter(record(b"k", huge), "s", ValueError(), SETTINGS),
        dead_letter(record(huge, huge, ("h", huge)), "s", ValueError(), SETTINGS),
    ]
    for letter in letters:
        assert letter.value is None
        assert dict(letter.headers)["__forgewatch.errors.value_omitted_bytes"] == b"5000000"
        assert record_bytes(letter.key, letter.value, letter.headers) <= SETTINGS.max_record_bytes
    assert letters[0].key == b"k"

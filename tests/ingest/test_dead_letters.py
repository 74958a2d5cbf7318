import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ingest.dead_letters import FACTS, PREFIX, as_it_came, dead_letter
from ingest.envelope import EnvelopeError, open_envelope
from ingest.kafka.sink import record_bytes
from ingest.records import InRecord, MediaItem
from ingest.sandbox.decode import DecodeError
from ingest.settings import IngestSettings

SETTINGS = IngestSettings()
optional = st.none() | st.binary(max_size=50)


def record(key, value, *headers):
    return InRecord("media", 3, 14, 0, key, value, headers)


@given(optional, optional, st.lists(st.tuples(st.text(max_size=9), st.binary(max_size=9))), st.text())
def test_key_value_and_headers_stay_byte_for_byte(key, value, headers, text):
    letter = dead_letter(record(key, value, *headers), "decode", DecodeError("corrupt", text), SETTINGS)
    assert (letter.key, letter.value) == (key, value)
    assert list(letter.headers[: len(headers)]) == headers


def test_the_headers_say_what_went_wrong_and_where():
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


def test_texts_are_cut_at_a_kilobyte_between_characters():
    letter = dead_letter(record(None, None), "decode", ValueError("ä" * 5000), SETTINGS)
    text = dict(letter.headers)["__forgewatch.errors.message"]
    assert len(text) == 1024
    assert text.decode() == "ä" * 512
    assert dict(letter.headers)["__forgewatch.errors.reason"] == b"unexpected"


def test_a_null_header_becomes_empty_and_is_named():
    letter = dead_letter(record(b"k", b"v", ("a", None), ("b", b"")), "decode", ValueError(), SETTINGS)
    assert letter.headers[:2] == (("a", b""), ("b", b""))
    assert dict(letter.headers)["__forgewatch.errors.null_headers"] == b"a"


forged = st.builds(
    str.__add__,
    st.sampled_from([PREFIX, PREFIX.upper(), PREFIX.title()]),
    st.sampled_from([*FACTS, "null_headers", "value_omitted_bytes"]) | st.text(max_size=9),
)


@given(st.lists(st.tuples(st.text(max_size=9) | forged, st.none() | st.binary(max_size=9)), max_size=12))
@example([("a", None), (PREFIX + "offset", b"0"), ("b", b""), (PREFIX + "null_headers", None)])
def test_a_producer_s_own_errors_go_no_further(headers):
    """What it would say of itself stands in no dead letter, so also in no dead letter of a replay."""
    error = DecodeError("corrupt", "text")
    letter = dead_letter(record(b"k", b"v", *headers), "decode", error, SETTINGS)
    honest = [(name, raw) for name, raw in headers if not name.lower().startswith(PREFIX)]
    assert letter == dead_letter(record(b"k", b"v", *honest), "decode", error, SETTINGS)
    said = [name.removeprefix(PREFIX) for name, _ in letter.headers if name.lower().startswith(PREFIX)]
    assert said == [*FACTS, *["null_headers"][: None in [raw for _, raw in honest]]]
    assert as_it_came(letter.headers) == [(name, raw or b"") for name, raw in honest]


def test_the_largest_record_of_the_media_topic_fits_with_its_errors():
    value = b"x" * (SETTINGS.max_media_bytes - 400)
    letter = dead_letter(record(b"key", value, ("h", b"y" * 300)), "s", ValueError("z" * 9999), SETTINGS)
    assert letter.value == value
    assert record_bytes(letter.key, letter.value, letter.headers) <= SETTINGS.max_record_bytes


def test_a_record_that_a_compressed_batch_made_too_large_is_still_answered():
    huge = b"0" * 2 * SETTINGS.max_record_bytes
    letters = [
        dead_letter(record(b"k", huge), "s", ValueError(), SETTINGS),
        dead_letter(record(huge, huge, ("h", huge)), "s", ValueError(), SETTINGS),
    ]
    for letter in letters:
        assert letter.value is None
        assert dict(letter.headers)["__forgewatch.errors.value_omitted_bytes"] == str(len(huge)).encode()
        assert record_bytes(letter.key, letter.value, letter.headers) <= SETTINGS.max_record_bytes
    assert letters[0].key == b"k"


ATTRIBUTES = ["specversion", "id", "source", "type", "time", "subject", "datacontenttype", "dataref"]
ATTRIBUTES += ["data", "data_base64", "datacontentencoding", "dataschema", "traceparent"]

# Surrogates, controls and NUL among them, which JSON can escape and UTF-8 has no bytes for.
texts = st.text(st.characters(), max_size=8) | st.sampled_from(["1.0", "0.3", "bWVkaWE=", "base64", "\0"])
urls = st.builds("file://{}{}".format, st.sampled_from(["", "/", "[", "host"]), texts)
numbers = st.integers() | st.floats() | st.sampled_from([10**400, -1, float("nan")])
members = st.recursive(
    st.none() | st.booleans() | numbers | texts | urls,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)
sound = {"specversion": "1.0", "id": "7", "source": "/c", "type": "m", "data_base64": "bWVkaWE="}
documents = st.builds(
    lambda base, changes: json.dumps(base | changes).encode(),
    st.sampled_from([sound, {}]),
    st.dictionaries(st.sampled_from(ATTRIBUTES) | texts, members, max_size=4),
)
values = (
    st.none()
    | st.binary(max_size=40)
    | documents
    | st.builds(bytes.__add__, documents, st.binary(max_size=3))
)
raws = st.none() | st.binary(max_size=12) | st.sampled_from([b"1.0", b"image/jpeg", b"7"])
names = st.sampled_from(["content-type", "Content-Type", *(f"ce_{name}" for name in ATTRIBUTES)])
headers_of = st.lists(
    st.tuples(names | st.text(max_size=6), raws)
    | st.just(("content-type", b"application/cloudevents+json"))
    | st.just(("ce_specversion", b"1.0")),
    max_size=6,
)


@pytest.fixture(scope="module")
def ingest(tmp_path_factory):
    return IngestSettings(claim_check_dir=tmp_path_factory.mktemp("claims"))


def nested(depth):
    return json.dumps(sound | {"subject": None})[:-1].encode() + b',"y":' + b"[" * depth + b"]" * depth + b"}"


def answer(ingest, headers, value):
    try:
        item, media = open_envelope(InRecord("t", 1, 2, 3, None, value, tuple(headers)), ingest)
    except EnvelopeError as error:
        return error
    assert item.size_bytes == len(media)
    return item


@pytest.mark.slow
@settings(max_examples=500)
@given(headers_of, values, st.none() | st.binary(max_size=5))
@example(
    [("content-type", b"application/cloudevents+json")], json.dumps(sound | {"id": "\ud800"}).encode(), None
)
@example([], json.dumps({**sound, "data_base64": None, "dataref": "file:///\ud800"}).encode(), None)
@example([("ce_specversion", b"1.0")], None, b"\xff")
def test_any_record_has_one_answer_that_can_be_written(ingest, headers, value, key):
    found = answer(ingest, headers, value)
    if isinstance(found, MediaItem):
        assert MediaItem.model_validate_json(found.model_dump_json().encode()) == found
        for text in (found.media_id, found.source, found.declared_type):
            assert len((text or "").encode()) <= 4 * 1024
        return
    assert str(found).isprintable()
    record = InRecord("t", 1, 2, 3, key, value, tuple(headers))
    letter = dead_letter(record, "envelope", found, ingest)
    assert (letter.key, letter.value) == (key, value)
    assert [(name, raw or b"") for name, raw in headers] == list(letter.headers[: len(headers)])
    assert record_bytes(letter.key, letter.value, letter.headers) <= ingest.max_record_bytes


@pytest.mark.slow
def test_nesting_of_any_depth_is_opened_or_refused(ingest):
    found = [answer(ingest, [], nested(depth)) for depth in [*range(1, 1200, 7), 100_000]]
    assert isinstance(found[0], MediaItem)
    assert isinstance(found[-1], EnvelopeError)


parts = st.sampled_from([0, 1, 900, 1_000_000, 1_200_000, 3_000_000])


@pytest.mark.slow
@given(parts, parts, parts, st.sampled_from([0, 1, 300_000]))
def test_a_dead_letter_always_fits_and_leaves_out_no_more_than_it_must(key, value, header, count):
    ingest = IngestSettings()
    headers = (("h", b"x" * header), *((("a", b""),) * count))
    record = InRecord("t", 1, 2, 3, b"k" * key, b"v" * value, headers)
    letter = dead_letter(record, "envelope", ValueError("x" * 5000), ingest)
    assert record_bytes(letter.key, letter.value, letter.headers) <= ingest.max_record_bytes
    said = dict(letter.headers)
    kept = {
        "key": (letter.key, record.key),
        "value": (letter.value, record.value),
        "headers": (letter.headers[: len(headers)], headers),
    }
    sizes = {"key": key, "value": value, "headers": record_bytes(None, None, headers)}
    omitted = {name for name in kept if f"__forgewatch.errors.{name}_omitted_bytes" in said}
    for name, (got, was) in kept.items():
        assert (got == was) is (name not in omitted)
    for name in omitted:
        # Whatever is larger than what was left out is left out too.
        assert all(other in omitted for other, size in sizes.items() if size > sizes[name])

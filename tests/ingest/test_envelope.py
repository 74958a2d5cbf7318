import base64
import hashlib
import json

import numpy as np
import pytest
from cloudevents.core.bindings.kafka import to_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent
from cloudevents.v1.http import CloudEvent as OlderCloudEvent
from cloudevents.v1.kafka import to_structured
from hypothesis import given
from hypothesis import strategies as st
from pictures import drawn, hashes_of
from PIL import Image, ImageOps

from ingest.envelope import EnvelopeError, open_envelope
from ingest.picture_hash import HASH_BYTES, PICTURE_BYTES, mirror_hashes, picture_hashes
from ingest.records import CropPlan, InRecord, MediaItem, MediaPlan, Place, PlacesPlan
from ingest.sandbox.extract import extract
from ingest.settings import IngestSettings

MEDIA = b"\xff\xd8\xff media"
EVENT = {"id": "7", "source": "/camera", "type": "media", "datacontenttype": "image/jpeg"}
STRUCTURED = [("content-type", b"application/cloudevents+json; charset=utf-8")]


def opened(headers, value, settings=None):
    return open_envelope(InRecord("t", 1, 2, 3, None, value, tuple(headers)), settings or IngestSettings())


def reason(headers, value, settings=None):
    with pytest.raises(EnvelopeError) as error:
        opened(headers, value, settings)
    assert "\n" not in str(error.value)
    return error.value.reason


def binary(**changes):
    headers = {"ce_specversion": b"1.0", "ce_id": b"7", "ce_source": b"/c", "ce_type": b"m"}
    return [(name, raw) for name, raw in (headers | changes).items() if raw != b"-"]


def document(**changes):
    event = {
        "specversion": "1.0",
        "id": "7",
        "source": "/c",
        "type": "m",
        "data_base64": "bWVkaWE=",
    } | changes
    return json.dumps({name: value for name, value in event.items() if value != "-"}).encode()


def test_a_bare_value_is_the_media():
    item, media = opened([("content-type", b"image/jpeg"), ("trace", b"\xff")], MEDIA)
    assert media == MEDIA
    assert (item.media_id, item.source, item.declared_type) == (None, "t", "image/jpeg")
    assert (item.partition, item.offset, item.timestamp_ms) == (1, 2, 3)
    assert (item.digest, item.size_bytes) == (hashlib.sha256(MEDIA).hexdigest(), len(MEDIA))


def test_the_names_that_http_gives_an_events_headers_are_understood():
    headers = [(name.replace("ce_", "Ce-"), value) for name, value in binary()]
    assert opened(headers, MEDIA)[0].media_id == "7"
    assert opened([*headers, ("ce_id", b"8"), ("ce-id", b"9")], MEDIA)[0].media_id == "8"
    trace = ("ce-traceparent", b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-01")
    assert opened([*headers, trace], MEDIA)[0].traceparent


@pytest.mark.parametrize(
    ("key", "headers", "source"),
    [
        (b"door-7", [], "door-7"),
        (b"door-7", [("Source", b"camera-7")], "camera-7"),
        (None, [("source", b"x"), ("source", None), ("source", b"\x00")], "\\x00"),
        (b"", [], "t"),
        (b"door-7", binary(), "/c"),
        (b"\x00\xff\x1b[2J", [], "\\x00\\xff\\x1b[2J"),
        (b"x" * 5000, [], "x" * 1000),
    ],
)
def test_a_source_is_the_events_or_a_header_or_a_key_that_came_before_or_the_topic(key, headers, source):
    open_envelope(InRecord("t", 1, 1, 3, key, MEDIA, ()), IngestSettings())
    record = InRecord("t", 1, 2, 3, key, MEDIA, tuple(headers))
    assert open_envelope(record, IngestSettings())[0].source == source


def test_a_key_of_its_own_for_each_record_names_no_source(monkeypatch):
    monkeypatch.setattr("ingest.envelope._MOST_KEYS", 9)

    def source(offset, key):
        return open_envelope(InRecord("t", 1, offset, 3, key, MEDIA, ()), IngestSettings())[0].source

    for offset in range(30):
        assert source(offset, b"item-%d" % offset) == "t"
        assert source(offset, b"item-%d" % offset) == "t"  # opened again, for a second look
        assert source(1000 + offset, b"camera") == ("camera" if offset else "t")


@pytest.mark.parametrize("write", [to_binary_event, to_structured_event])
def test_what_the_stock_client_sends_is_understood_in_both_modes(write):
    message = write(CloudEvent(dict(EVENT), MEDIA))
    item, media = opened(list(message.headers.items()), message.value)
    assert media == MEDIA
    assert (item.media_id, item.source, item.declared_type) == ("7", "/camera", "image/jpeg")


def test_a_null_header_is_an_attribute_that_is_not_set():
    # The JavaScript client makes a header of every attribute that it knows, with or without a value.
    unset = [("content-type", None), ("ce_subject", None), ("ce_dataschema", None)]
    item, media = opened(binary(ce_datacontenttype=b"image/png") + unset, MEDIA)
    assert (item.media_id, item.declared_type, media) == ("7", "image/png", MEDIA)
    assert opened([("content-type", None)], MEDIA)[1] == MEDIA


def test_a_null_member_of_a_structured_event_is_an_attribute_that_is_not_set(tmp_path):
    value = document(subject=None, time=None, datacontenttype=None, data=None, dataref=None)
    assert opened(STRUCTURED, value)[1] == b"media"
    (tmp_path / "a.jpg").write_bytes(MEDIA)
    value = document(data_base64=None, subject=None, dataref=(tmp_path / "a.jpg").as_uri())
    assert opened(STRUCTURED, value, IngestSettings(claim_check_dir=tmp_path))[1] == MEDIA
    assert reason(STRUCTURED, document(id=None)) == "bad_event"
    assert reason(STRUCTURED, document(data_base64=None)) == "no_media"


def test_media_that_looks_like_json_is_left_alone():
    assert opened([], b'{"version": "9", "data": 1}')[1] == b'{"version": "9", "data": 1}'
    value = b'{"specversion": "9", "data": 1}'
    assert opened(binary(), value)[1] == value


@pytest.mark.parametrize("declared", ["image/jpeg", None])
def test_a_structured_event_of_the_older_client_is_known_by_its_value(declared):
    # It moves datacontenttype out of the event and into the header of that name, where there is one.
    attributes = {"source": "/camera", "type": "media", "datacontenttype": declared}
    event = OlderCloudEvent({name: text for name, text in attributes.items() if text}, MEDIA)
    message = to_structured(event)
    assert message.headers.get("content-type") == (declared and declared.encode())
    item, media = opened(list(message.headers.items()), message.value)
    assert media == MEDIA
    assert (item.media_id, item.source, item.declared_type) == (event["id"], "/camera", declared)


def test_a_structured_event_is_known_by_its_value_and_refused_by_its_own_reasons():
    assert opened([], b" \r\n" + document())[1] == b"media"
    assert opened([("content-type", b"image/png")], document(datacontenttype="image/gif"))[
        0
    ].declared_type == ("image/gif")
    assert reason([], document(specversion="9")) == "unknown_specversion"
    assert reason([], document()[:-1]) == "bad_event"
    assert reason([], document(data_base64="-")) == "no_media"


def test_header_names_are_read_in_any_case():
    headers = [(name.upper(), raw) for name, raw in binary()]
    assert opened(headers, MEDIA)[0].media_id == "7"


def test_the_older_version_of_the_specification_is_known():
    value = document(specversion="0.3", data_base64="-", data="bWVkaWE=", datacontentencoding="base64")
    assert opened(STRUCTURED, value)[1] == b"media"
    assert opened(binary(ce_specversion=b"0.3"), MEDIA)[1] == MEDIA


@pytest.mark.parametrize(
    ("headers", "value", "expected"),
    [
        ([], None, "null_value"),
        (binary(), None, "null_value"),
        (STRUCTURED, None, "null_value"),
        (binary(ce_specversion=b"2.0"), MEDIA, "unknown_specversion"),
        (binary(ce_specversion=b"-"), MEDIA, "bad_event"),
        (binary(ce_id=b"-"), MEDIA, "bad_event"),
        (binary(ce_id=b""), MEDIA, "bad_event"),
        (binary(ce_source=b"-"), MEDIA, "bad_event"),
        (binary(ce_time=b"yesterday"), MEDIA, "bad_event"),
        (binary(ce_source=b"x" * 2000), MEDIA, "bad_event"),
        (binary(ce_id=b"\xff\xfe"), MEDIA, "bad_header"),
        (binary(ce_id=None), MEDIA, "bad_event"),
        ([("content-type", b"\xff")], MEDIA, "bad_header"),
        (binary(**{"ce_odd-name": b"1"}), MEDIA, "bad_event"),
        ([("content-type", b"application/cloudevents-batch+json")], b"[]", "unsupported_format"),
        ([("content-type", b"application/cloudevents+xml")], b"<a/>", "unsupported_format"),
        (STRUCTURED, b"", "bad_event"),
        (STRUCTURED, MEDIA, "bad_event"),
        (STRUCTURED, b"[1]", "bad_event"),
        (STRUCTURED, b"[" * 100_000, "bad_event"),
        (STRUCTURED, document(specversion="2.0"), "unknown_specversion"),
        (STRUCTURED, document(specversion=["1.0"]), "unknown_specversion"),
        (STRUCTURED, document(specversion="-"), "bad_event"),
        (STRUCTURED, document(id="-"), "bad_event"),
        (STRUCTURED, document(id=5), "bad_event"),
        (STRUCTURED, document(time=5), "bad_event"),
        (STRUCTURED, document(data_base64="a"), "bad_event"),
        (STRUCTURED, document(data_base64=5), "bad_event"),
        (STRUCTURED, document(data_base64="-"), "no_media"),
        (STRUCTURED, document(data_base64="-", data="text"), "no_media"),
        (STRUCTURED, document(data_base64="-", data={"a": 1}), "no_media"),
        (STRUCTURED, document(data_base64="-", dataref=5), "bad_event"),
        (STRUCTURED, document(id="\ud800"), "bad_event"),
        (STRUCTURED, document(source="/\udfff"), "bad_event"),
        (STRUCTURED, document(datacontenttype="\ud800"), "bad_event"),
        (STRUCTURED, document(id="7\0"), "bad_event"),
        (STRUCTURED, document(id="\x1b[2J"), "bad_event"),
        (STRUCTURED, document(**{"\ud800": "1"}), "bad_event"),
        (STRUCTURED, document(data_base64="-", dataref="file:///\ud800"), "dataref_refused"),
        (STRUCTURED, document(data_base64="-", dataref="file:///\0"), "dataref_refused"),
        (STRUCTURED, document(data_base64="-", dataref="file://[::1/a"), "dataref_refused"),
        (STRUCTURED, b'{"specversion":' + b"[" * 900 + b"]" * 900 + b"}", "unknown_specversion"),
        (STRUCTURED, b'{"x":' + b"9" * 5000 + b"}", "bad_event"),
        (STRUCTURED, b'{"id":"\xed\xa0\x80"}', "bad_event"),
        (binary(ce_id=b"7\0"), MEDIA, "bad_event"),
        (binary(ce_source=b"\xc2\x9b2J"), MEDIA, "bad_event"),
        ([("content-type", b"image/png\x1b[2J")], MEDIA, "bad_header"),
    ],
)
def test_what_is_no_envelope_has_its_one_reason(headers, value, expected):
    assert reason(headers, value) == expected


def test_an_empty_value_is_opened_and_left_to_the_decoder():
    assert opened([], b"")[1] == b""


def test_a_value_over_the_limit_is_refused_however_it_came():
    settings = IngestSettings(max_media_bytes=10)
    assert reason([], b"x" * 11, settings) == "too_large"
    assert (
        reason(STRUCTURED, document(data_base64=base64.b64encode(b"x" * 11).decode()), settings)
        == "too_large"
    )


@pytest.mark.parametrize("value", [None, b""])
def test_a_dataref_is_fetched_where_the_record_has_no_media(value, tmp_path):
    (tmp_path / "a.jpg").write_bytes(MEDIA)
    settings = IngestSettings(claim_check_dir=tmp_path)
    dataref = f"file://{tmp_path}/a.jpg"
    item, media = opened(binary(ce_dataref=dataref.encode()), value, settings)
    assert media == MEDIA
    assert item.digest == hashlib.sha256(MEDIA).hexdigest()
    assert opened(STRUCTURED, document(data_base64="-", dataref=dataref), settings)[1] == MEDIA


def test_a_dataref_outside_the_root_or_to_nothing_says_so(tmp_path):
    settings = IngestSettings(claim_check_dir=tmp_path, max_fetched_bytes=3)
    (tmp_path / "big").write_bytes(b"1234")
    assert reason(binary(ce_dataref=b"file:///etc/passwd"), None, settings) == "dataref_refused"
    assert reason(binary(ce_dataref=b"http://127.0.0.1/"), None, settings) == "dataref_refused"
    assert reason(binary(ce_dataref=f"file://{tmp_path}/none".encode()), None, settings) == "dataref_missing"
    assert reason(binary(ce_dataref=f"file://{tmp_path}/big".encode()), None, settings) == "too_large"


PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
OTHER = "00-11111111111111111111111111111111-2222222222222222-00"


def traced(headers, value):
    item, _ = opened(headers, value)
    return item.traceparent, item.tracestate


def test_the_place_in_a_trace_is_kept_from_every_form_that_media_comes_in():
    state = b"vendor=1"
    plain = [("traceparent", PARENT.encode()), ("tracestate", state)]
    assert traced(plain, MEDIA) == (PARENT, "vendor=1")
    event = binary(ce_traceparent=PARENT.encode(), ce_tracestate=state)
    assert traced(event, MEDIA) == (PARENT, "vendor=1")
    assert traced(STRUCTURED, document(traceparent=PARENT, tracestate="vendor=1")) == (PARENT, "vendor=1")


def test_an_events_own_place_goes_before_that_of_the_hop_and_the_hops_serves_where_it_has_none():
    hop = [("traceparent", OTHER.encode())]
    assert traced(hop + binary(ce_traceparent=PARENT.encode()), MEDIA) == (PARENT, None)
    assert traced(hop + STRUCTURED, document(traceparent=PARENT)) == (PARENT, None)
    for headers, value in ((hop + binary(), MEDIA), (hop + STRUCTURED, document())):
        assert traced(headers, value) == (OTHER, None)


@pytest.mark.parametrize("malformed", [b"\xff\xfe", b"", b"00-0-0-0", PARENT.upper().encode(), b"a\nb"])
def test_a_malformed_place_is_dropped_and_the_item_is_opened(malformed):
    assert traced([("traceparent", malformed), ("tracestate", malformed)], MEDIA) == (None, None)
    event = binary(ce_traceparent=malformed, ce_tracestate=malformed)
    assert traced(event, MEDIA) == (None, None)
    state = binary(ce_traceparent=PARENT.encode(), ce_tracestate=malformed)
    assert traced(state, MEDIA) == (PARENT, None)


@pytest.mark.parametrize("malformed", [7, True, {"a": 1}, ["x"], "", "a\x00b", "x" * 5000])
def test_a_malformed_place_in_a_structured_event_is_dropped_and_the_item_is_opened(malformed):
    assert traced(STRUCTURED, document(traceparent=malformed, tracestate=malformed)) == (None, None)
    assert traced(STRUCTURED, document(traceparent=PARENT, tracestate=malformed)) == (PARENT, None)


def test_an_item_of_before_the_fields_is_still_read():
    item, _ = opened([], MEDIA)
    written = item.model_dump(exclude={"traceparent", "tracestate"})
    assert MediaItem.model_validate(written) == item
    assert item.trace is None


seeds = st.integers(0, 2**32 - 1)


def codes(hashes):
    return np.frombuffer(hashes, np.uint8).reshape(-1, HASH_BYTES)


def bits(a, b):
    return int(np.bitwise_count(a ^ b).sum())


@given(seeds, st.integers(33, 400), st.integers(33, 400))
def test_the_hash_of_the_mirrored_picture_is_the_mirrored_hash(seed, width, height):
    picture = drawn(seed, width, height)
    own, other = codes(hashes_of(picture)), codes(hashes_of(ImageOps.mirror(picture)))
    np.testing.assert_array_equal(mirror_hashes(mirror_hashes(own)), own)
    assert bits(mirror_hashes(own)[0], other[0]) <= 8
    assert bits(own[0], other[0]) > 64


@given(seeds, st.integers(600, 1500), st.integers(600, 1500))
def test_a_large_picture_has_the_hash_of_its_small_copy(seed, width, height):
    picture = drawn(seed, width, height)
    small = picture.resize((width // 4, height // 4), Image.Resampling.LANCZOS)
    assert bits(codes(hashes_of(picture))[0], codes(hashes_of(small))[0]) <= 16


@pytest.mark.parametrize("noise", [0, 2])
@pytest.mark.parametrize("slope", [(0, 0), (200, 0), (0, 200), (100, 100)])
def test_flat_pictures_and_gradients_have_no_hash(slope, noise):
    down, across = np.mgrid[0:1:200j, 0:1:300j]
    grey = 20 + slope[0] * down + slope[1] * across
    grey = grey + np.random.default_rng(0).normal(0, noise, grey.shape) if noise else grey
    assert hashes_of(Image.fromarray(grey.round().astype(np.uint8)).convert("RGB")) == b""


@pytest.mark.parametrize("size", [(1, 1), (1, 5000), (5000, 1), (3, 2)])
def test_pictures_of_any_size_are_hashed_or_found_flat(size):
    rng = np.random.default_rng(0)
    hashes = picture_hashes(rng.integers(0, 256, (*size, 3), np.uint8))
    assert len(hashes) in (0, PICTURE_BYTES)


def png(picture, **options):
    import io

    file = io.BytesIO()
    picture.save(file, "PNG", **options)
    return file.getvalue()


def test_each_frame_that_is_not_flat_is_hashed_in_its_order_and_only_at_the_first_look():
    frames = [drawn(1), Image.new("RGB", (240, 200)), drawn(2)]
    media = png(frames[0], save_all=True, append_images=frames[1:], duration=100)
    decoded = extract(media, MediaPlan(crops=CropPlan(crop_px=32)), 10**6)
    assert decoded.frames == 3
    assert decoded.picture_hashes == hashes_of(frames[0]) + hashes_of(frames[2])
    again = PlacesPlan(crop_px=32, places=(Place(0, 0, 0),)), MediaPlan(frames=(0, 2))
    assert [extract(media, plan, 10**6).picture_hashes for plan in again] == [b"", b""]

"""Bar M4: whatever a record is, it gets one verdict or one dead letter, and the worker goes on."""

import base64
import json
import random
import threading
from collections import Counter
from types import SimpleNamespace

import pytest
from attacks import FAMILIES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from media import photo

from detector.serving.rollout import Route
from detector.serving.session import open_session
from detector.settings import DetectorSettings
from detector.worker import Worker
from ingest.kafka.sink import RecordTooLargeError, record_bytes
from ingest.process.health import Heartbeat
from ingest.records import InRecord
from ingest.sandbox.sandbox import Sandbox
from ingest.settings import IngestSettings

pytestmark = [pytest.mark.slow, pytest.mark.bar("M4")]


class Stream:
    """A topic of some records and the transactions that answer them: source and sink of one worker."""

    def __init__(self, records, limit_bytes):
        self.stop = threading.Event()
        self.answers = Counter()
        self._left, self._limit, self._open = list(records), limit_bytes, len(records)

    def poll(self, most, timeout_s):
        taken, self._left = self._left[:most], self._left[most:]
        return taken

    def offsets_after(self, records):
        return len(records)

    def commit(self, records, offsets, group_metadata):
        for record in records:
            if (size := record_bytes(record.key, record.value, record.headers)) > self._limit:
                raise RecordTooLargeError(record, size, self._limit)
        for record in records:
            if record.topic == "forgewatch.verdicts":
                self.answers[str(json.loads(record.value or b"")["id"])] += 1
            elif record.topic == "forgewatch.dead-letters":
                told = dict(record.headers)
                place = (told[f"__forgewatch.errors.{name}"] for name in ("topic", "partition", "offset"))
                self.answers["-".join(part.decode() for part in place)] += 1
        self._open -= offsets
        if not self._open:
            self.stop.set()

    def is_member(self):
        return True

    def pause(self):
        pass

    def resume(self):
        pass

    def group_metadata(self):
        return None


@pytest.fixture(scope="module")
def answered(untrained_artifact, tmp_path_factory):
    """Has records judged by a worker whose sandbox and graph are real; counts each one's answers."""
    folder = tmp_path_factory.mktemp("claims")
    (folder / "photo").write_bytes(photo(96))
    ingest = IngestSettings(max_pixels=10_000, claim_check_dir=folder)
    session = open_session(untrained_artifact, threads=1)

    def predict(artifact, request):
        return session.score(request)

    with Sandbox(ingest) as sandbox:

        def judge(records):
            stream = Stream(records, ingest.max_record_bytes)
            torchserve = SimpleNamespace(predict=predict)
            serving = SimpleNamespace(route=Route(untrained_artifact), tick=lambda: None)
            parts = (stream, sandbox, torchserve, serving, stream, ingest, DetectorSettings())
            Worker(*parts, stream.stop, Heartbeat(60)).run()
            return stream.answers

        yield judge


MEDIA = st.builds(
    lambda family, seed: family(random.Random(seed), 10_000), st.sampled_from(FAMILIES), st.integers(0, 2**32)
)
VALUES = st.none() | st.just(photo(96)) | MEDIA | st.binary(max_size=200)
TEXTS = (
    st.text(max_size=40) | st.just("x" * 5_000) | st.sampled_from(["\0", "\x7f", "", "1.0", "é", "\ud800"])
)
DATAREFS = st.sampled_from(["photo", "../photo", "none", "%00", "photo?x", "\ud800"]) | st.text(max_size=20)
ROOTS = st.sampled_from(["file:///", "file://", "http://127.0.0.1:9/", "s3://", ""])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
ATTRIBUTES = (
    "specversion",
    "id",
    "source",
    "type",
    "time",
    "subject",
    "datacontenttype",
    "dataref",
    "traceparent",
)
SOUND = {"specversion": "1.0", "id": "7", "source": "/camera", "type": "media"}


@st.composite
def binary_events(draw):
    """Headers of an event, right but for some, and a value."""
    named = {f"ce_{name}": text.encode() for name, text in SOUND.items()}
    for name in draw(st.lists(st.sampled_from(ATTRIBUTES), max_size=3)):
        named[f"ce_{name}"] = draw(
            st.none() | st.binary(max_size=60) | TEXTS.map(lambda text: text.encode(errors="surrogatepass"))
        )
    return draw(VALUES), [*named.items(), *draw(HEADERS)]


@st.composite
def structured_events(draw):
    """A JSON document that is an event, right but for some of it."""
    event = SOUND | {"data_base64": base64.b64encode(draw(VALUES) or b"").decode()}
    for name in draw(st.lists(st.sampled_from((*ATTRIBUTES, "data", "data_base64")), max_size=3)):
        event[name] = draw(JSON)
    if draw(st.booleans()):
        event["dataref"] = f"{draw(ROOTS)}{draw(DATAREFS)}"
    if draw(st.booleans()):
        event.pop("data_base64")
    return json.dumps(event).encode(), [("content-type", b"application/cloudevents+json"), *draw(HEADERS)]


HEADERS = st.lists(
    st.tuples(
        st.sampled_from(["content-type", "traceparent", "tracestate", "__forgewatch.errors.reason", "ce_x"])
        | st.text(max_size=20),
        st.none() | st.binary(max_size=100) | st.just(b"x" * 70_000),
    ),
    max_size=3,
)
CONTENTS = st.tuples(VALUES, HEADERS) | binary_events() | structured_events()


def as_records(contents, keys, timestamps):
    return [
        InRecord("media", 0, offset, timestamp, key, value, tuple(headers))
        for offset, ((value, headers), key, timestamp) in enumerate(
            zip(contents, keys, timestamps, strict=True)
        )
    ]


RECORDS = st.lists(
    st.tuples(CONTENTS, st.none() | st.binary(max_size=50), st.sampled_from([-1, 0, 2**62])),
    min_size=1,
    max_size=6,
).map(lambda drawn: as_records(*zip(*drawn, strict=True)))


def test_whatever_a_record_is_it_has_one_answer_and_the_worker_goes_on(bar, answered):
    seen = 0

    @settings(
        max_examples=bar.times(60, 2_000),
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(RECORDS)
    def judged(records):
        nonlocal seen
        after = InRecord("media", 0, len(records), 0, None, photo(96), ())
        found = answered([*records, after])
        assert found == Counter({record.id: 1 for record in [*records, after]})
        seen += len(records)

    try:
        judged()
    finally:
        bar.count(seen)


def test_control_a_text_that_no_verdict_can_hold_ends_an_unchecked_worker(bar, answered, monkeypatch):
    event = SOUND | {"source": "\ud800", "data_base64": base64.b64encode(photo(96)).decode()}
    record = InRecord("media", 0, 0, 0, None, json.dumps(event).encode(), ())
    assert answered([record]) == Counter({record.id: 1})
    monkeypatch.setattr("ingest.envelope._require_text", lambda *_: None)
    bar.count(1)
    with pytest.raises(Exception, match="surrogates"):
        answered([record])

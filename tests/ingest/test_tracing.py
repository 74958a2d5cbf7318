"""Spans reach a real OTLP/HTTP receiver; without its address nothing of OpenTelemetry is loaded."""

import os
import subprocess
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.process.frame import WrongSettingError
from ingest.records import InRecord
from ingest.trace_context import TraceContext, of_headers, trace_context
from ingest.tracing import exporting

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
SAMPLED = TraceContext(f"00-{TRACE}-{PARENT}-01", "vendor=1")
RECORD = InRecord("media", 3, 17, 0, None, b"", ())


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)


def test_an_items_span_lasts_from_its_take_to_its_end_and_is_a_child_of_the_producers(collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    began = time.time_ns() - 2_000_000_000
    with exporting("detector", "workers") as spans:
        span = spans.begin(RECORD, SAMPLED, began)
        onwards = span.context
        span.end({"forgewatch.label": "fake", "forgewatch.model_s": 0.5})
    (sent,) = collector.spans()
    assert sent.service == "forgewatch-detector"
    assert (sent.trace, sent.parent, sent.state) == (TRACE, PARENT, "vendor=1")
    assert sent.began_ns == began
    assert 2_000_000_000 <= sent.ended_ns - began < 60_000_000_000
    assert (onwards.trace_id, onwards.tracestate) == (TRACE, "vendor=1")
    assert onwards.traceparent.split("-")[2] == sent.id
    said = sent.attributes
    assert (said["messaging.destination.name"], said["messaging.kafka.offset"]) == ("media", 17)
    assert said["messaging.consumer.group.name"] == "workers"
    assert (said["forgewatch.label"], said["forgewatch.model_s"]) == ("fake", 0.5)
    assert not sent.failed


def test_an_item_without_a_trace_begins_one_and_one_that_failed_says_why(collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", f"{collector.url}/v1/traces")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=ours")
    with exporting("detector", "workers") as spans:
        assert spans is not None
        for _ in range(2):
            spans.begin(RECORD, None, time.time_ns()).end({}, "corrupt")
    first, second = collector.spans()
    assert first.service == "ours"
    assert first.parent == second.parent == ""
    assert first.trace != second.trace
    assert first.attributes["error.type"] == "corrupt"
    assert first.failed


def test_what_was_never_committed_and_what_the_producer_does_not_sample_is_not_sent(collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    with exporting("detector", "workers") as spans:
        spans.begin(RECORD, SAMPLED, time.time_ns())
        unsampled = spans.begin(RECORD, TraceContext(f"00-{TRACE}-{PARENT}-00"), time.time_ns())
        unsampled.end({})
    assert unsampled.context.trace_id == TRACE
    assert unsampled.context.traceparent.endswith("-00")
    assert collector.spans() == []


@pytest.mark.slow
def test_a_collector_that_is_away_holds_up_neither_the_work_nor_the_end(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    with exporting("detector", "workers") as spans:
        assert spans is not None
        began = time.monotonic()
        for _ in range(100):
            spans.begin(RECORD, SAMPLED, time.time_ns()).end({})
        assert time.monotonic() - began < 10
        began = time.monotonic()
    assert time.monotonic() - began < 20


@pytest.mark.slow
def test_off_it_loads_nothing_of_opentelemetry():
    away = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    ways_off = [{}, {"OTEL_EXPORTER_OTLP_ENDPOINT": ""}]
    ways_off += [away | {"OTEL_SDK_DISABLED": "true"}, away | {"OTEL_TRACES_EXPORTER": "none"}]
    program = (
        "import os, sys, detector.worker, memory.worker\n"
        "from ingest.tracing import exporting\n"
        f"for off in {ways_off}:\n"
        "    os.environ.update(off)\n"
        "    with exporting('detector', 'workers') as spans: assert spans is None, off\n"
        "    assert not [name for name in sys.modules if name.startswith('opentelemetry')], off\n"
        "    for name in off: del os.environ[name]\n"
    )
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    subprocess.run([sys.executable, "-c", program], env=clean, check=True)


def test_an_empty_variable_is_one_that_is_not_set(collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
    for name in ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_PROTOCOL"):
        monkeypatch.setenv(name, "")
    with exporting("detector", "workers") as spans:
        spans.begin(RECORD, SAMPLED, time.time_ns()).end({})
    assert len(collector.spans()) == 1


def test_on_without_the_extra_it_says_what_to_install(monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.resources", None)
    with pytest.raises(WrongSettingError, match=r"OTEL_EXPORTER_OTLP_ENDPOINT.*forgewatch\[otel\]"):
        exporting("detector", "workers").__enter__()


TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{PARENT}-01"


def test_a_good_one_is_kept_as_it_is():
    assert trace_context(GOOD) == TraceContext(GOOD)
    found = trace_context(GOOD, "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE")
    assert found == TraceContext(GOOD, "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE")
    assert found.trace_id == TRACE


@pytest.mark.parametrize(
    "malformed",
    [
        *(None, 7, GOOD.encode(), "", GOOD[:-1], GOOD + "-more", GOOD + "\n", " " + GOOD, GOOD.upper()),
        *(GOOD.replace("-", "_"), f"ff-{TRACE}-{PARENT}-01", f"0-{TRACE}-{PARENT}-01"),
        *(f"00-{'0' * 32}-{PARENT}-01", f"00-{TRACE}-{'0' * 16}-01", f"01-{TRACE}-{PARENT}-01.more"),
        *(f"00-{TRACE[:-1]}{sign}-{PARENT}-01" for sign in "g\u0663"),
    ],
)
def test_a_malformed_one_counts_as_none_and_takes_its_state_with_it(malformed):
    assert trace_context(malformed, "a=1") is None


@pytest.mark.parametrize("later", [f"cc-{TRACE}-{PARENT}-01", f"01-{TRACE}-{PARENT}-fd-what-is-to-come"])
def test_a_later_version_is_passed_on_in_the_one_that_is_known(later):
    assert trace_context(later) == TraceContext(GOOD)


@pytest.mark.parametrize(
    ("state", "kept"),
    [
        ("a=1 , b=2\t,,c=3", "a=1,b=2,c=3"),
        ("0tenant@system=a b", "0tenant@system=a b"),
        ("a=" + "x" * 256, "a=" + "x" * 256),
        *(
            (bad, None)
            for bad in ("a=" + "x" * 257, "a=1,a=2", "A=1", "a", "a=", "a=1=2", "a=\x7f", "a=é", "")
        ),
        (",".join(f"k{n}=1" for n in range(32)), ",".join(f"k{n}=1" for n in range(32))),
        (",".join(f"k{n}=1" for n in range(33)), None),
        (",".join(f"k{n}={'x' * 100}" for n in range(6)), None),
        (7, None),
    ],
)
def test_a_malformed_state_is_dropped_and_the_parent_is_kept(state, kept):
    assert trace_context(GOOD, state) == TraceContext(GOOD, kept)


@given(st.text(max_size=80), st.text(max_size=80))
def test_no_text_of_a_stranger_is_an_error_or_leaves_the_grammar(parent, state):
    for found in (trace_context(parent, state), trace_context(GOOD, state)):
        if found is not None:
            assert trace_context(found.traceparent, found.tracestate) == found
            assert all(raw.isascii() and raw.decode().isprintable() for _, raw in found.headers())


def test_of_a_header_that_comes_twice_the_last_counts_and_bytes_that_are_no_text_count_as_none():
    other = f"00-{TRACE[::-1]}-{PARENT}-00"
    assert of_headers([("traceparent", other.encode()), ("TraceParent", GOOD.encode())]) == TraceContext(GOOD)
    assert of_headers([("traceparent", b"\xff" + GOOD.encode())]) is None
    assert of_headers([("traceparent", None)]) is None
    headers = [("ce_traceparent", GOOD.encode()), ("ce_tracestate", b"a=1")]
    assert of_headers(headers) is None
    assert of_headers(headers, "ce_") == TraceContext(GOOD, "a=1")


def test_what_is_written_is_read_back():
    context = TraceContext(GOOD, "a=1")
    assert of_headers(context.headers()) == context
    assert of_headers(context.headers("ce_"), "ce_") == context

"""The grammar of W3C Trace Context, level 2, sections 3.2 and 3.3."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.trace_context import TraceContext, of_headers, trace_context

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{PARENT}-01"


def test_a_good_one_is_kept_as_it_is() -> None:
    assert trace_context(GOOD) == TraceContext(GOOD)
    found = trace_context(GOOD, "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE")
    assert found == TraceContext(GOOD, "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE")
    assert found.trace_id == TRACE


@pytest.mark.parametrize(
    "malformed",
    [
        None,
        7,
        b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        "",
        GOOD[:-1],
        GOOD + "-more",
        GOOD + "\n",
        " " + GOOD,
        GOOD.upper(),
        GOOD.replace("-", "_"),
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}g-{PARENT}-01",
        f"00-{TRACE[:-1]}\u0663-{PARENT}-01",
        f"0-{TRACE}-{PARENT}-01",
        f"01-{TRACE}-{PARENT}-01.more",
    ],
)
def test_a_malformed_one_counts_as_none_and_takes_its_state_with_it(malformed: object) -> None:
    assert trace_context(malformed, "a=1") is None


@pytest.mark.parametrize("later", [f"cc-{TRACE}-{PARENT}-01", f"01-{TRACE}-{PARENT}-fd-what-is-to-come"])
def test_a_later_version_is_passed_on_in_the_one_that_is_known(later: str) -> None:
    assert trace_context(later) == TraceContext(GOOD)


@pytest.mark.parametrize(
    ("state", "kept"),
    [
        ("a=1 , b=2\t,,c=3", "a=1,b=2,c=3"),
        ("0tenant@system=a b", "0tenant@system=a b"),
        ("a=" + "x" * 256, "a=" + "x" * 256),
        ("a=" + "x" * 257, None),
        ("a=1,a=2", None),
        ("A=1", None),
        ("a", None),
        ("a=", None),
        ("a=1=2", None),
        ("a=\x7f", None),
        ("a=é", None),
        ("", None),
        (",".join(f"k{n}=1" for n in range(32)), ",".join(f"k{n}=1" for n in range(32))),
        (",".join(f"k{n}=1" for n in range(33)), None),
        (",".join(f"k{n}={'x' * 100}" for n in range(6)), None),
        (7, None),
    ],
)
def test_a_malformed_state_is_dropped_and_the_parent_is_kept(state: object, kept: str | None) -> None:
    assert trace_context(GOOD, state) == TraceContext(GOOD, kept)


@given(st.text(max_size=80), st.text(max_size=80))
def test_no_text_of_a_stranger_is_an_error_or_leaves_the_grammar(parent: str, state: str) -> None:
    for found in (trace_context(parent, state), trace_context(GOOD, state)):
        if found is not None:
            assert trace_context(found.traceparent, found.tracestate) == found
            assert all(raw.isascii() and raw.decode().isprintable() for _, raw in found.headers())


def test_of_a_header_that_comes_twice_the_last_counts_and_bytes_that_are_no_text_count_as_none() -> None:
    other = f"00-{TRACE[::-1]}-{PARENT}-00"
    assert of_headers([("traceparent", other.encode()), ("TraceParent", GOOD.encode())]) == TraceContext(GOOD)
    assert of_headers([("traceparent", b"\xff" + GOOD.encode())]) is None
    assert of_headers([("traceparent", None)]) is None
    headers = [("ce_traceparent", GOOD.encode()), ("ce_tracestate", b"a=1")]
    assert of_headers(headers) is None
    assert of_headers(headers, "ce_") == TraceContext(GOOD, "a=1")


def test_what_is_written_is_read_back() -> None:
    context = TraceContext(GOOD, "a=1")
    assert of_headers(context.headers()) == context
    assert of_headers(context.headers("ce_"), "ce_") == context

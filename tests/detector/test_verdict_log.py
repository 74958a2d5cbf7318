import json

import pytest
import structlog
from structlog.testing import capture_logs
from verdicts import make_item, make_verdict

from detector.batch import Judged, UnscorableError
from detector.verdict_log import log_verdict
from ingest.records import InRecord
from ingest.sandbox.decode import DecodeError
from ingest.trace_context import TraceContext

TRACE = TraceContext("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
RECORD = InRecord("media", 3, 17, 0, None, b"", ())
RELEASE = "c" * 12
ABOUT = {"item": "media-3-17", "topic": "media", "partition": 3, "offset": 17, "release": RELEASE}


@pytest.fixture
def level(request: pytest.FixtureRequest) -> None:
    """Logs what is at least of this level, as a process does."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(request.param))


def scored() -> Judged:
    verdict = make_verdict(make_item(17, partition=3), label="fake", family="gan", release="c" * 64)
    return Judged(RECORD, verdict, None, None, "score", TRACE, RELEASE)


@pytest.mark.parametrize("level", ["info"], indirect=True)
def test_a_verdict_is_no_line_at_the_normal_level(level: None) -> None:
    with capture_logs() as lines:
        log_verdict(scored(), None)
    assert lines == []


@pytest.mark.parametrize("level", ["debug"], indirect=True)
def test_a_verdict_is_one_line_for_debugging_that_says_of_which_item_and_release(level: None) -> None:
    with capture_logs() as lines:
        log_verdict(scored(), None)
    (line,) = lines
    assert line["log_level"] == "debug"
    expected = ABOUT | {"trace_id": TRACE.trace_id, "label": "fake", "family": "gan"}
    assert expected.items() <= line.items()


@pytest.mark.parametrize("level", ["info"], indirect=True)
def test_a_dead_letter_is_a_line_in_one_printable_piece(level: None) -> None:
    with capture_logs() as lines:
        log_verdict(
            Judged.failed(RECORD, "decode", DecodeError("corrupt", "broken\n\x1b[31m file"), TRACE, RELEASE),
            None,
        )
        log_verdict(
            Judged.failed(RECORD, "score", UnscorableError("refused", ValueError("no")), None, RELEASE), None
        )
    first, second = lines
    assert ABOUT.items() <= first.items()
    assert (first["stage"], first["reason"], first["trace_id"]) == ("decode", "corrupt", TRACE.trace_id)
    assert first["error"].isprintable()
    assert "trace_id" not in second
    assert json.loads(json.dumps(lines)) == lines

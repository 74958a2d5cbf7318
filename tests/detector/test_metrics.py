import json

import numpy as np
import pytest
import structlog
from prometheus_client import REGISTRY, generate_latest
from structlog.testing import capture_logs
from verdicts import make_item, make_verdict

import ingest.sandbox.sandbox  # noqa: F401 - what it counts
from detector.answers import count_committed, log_verdict
from detector.batch import Judged, UnscorableError
from detector.metrics import (
    ENERGY,
    FAKES,
    SERVING,
    UNKNOWN_SCORE,
    VERDICTS,
    count_second_looks,
    forget_release,
    serve_release,
)
from detector.records import Scan, Segment
from ingest.records import InRecord
from ingest.sandbox.decode import DecodeError
from ingest.trace_context import TraceContext


def lines_about(release):
    lines = generate_latest(REGISTRY).decode().splitlines()
    return [line for line in lines if f'release="{release}"' in line]


def test_a_retired_release_leaves_no_series_behind():
    for release in ("retired", "live"):
        for label in ("real", "fake", "unknown"):
            VERDICTS.labels(label, release).inc()
        for family in ("gan", "blend"):
            FAKES.labels(family, release).inc()
        ENERGY.labels(release).observe(-3)
        UNKNOWN_SCORE.labels(release).observe(1)
        SERVING.labels(release).set(1)
    forget_release("retired")
    assert lines_about("retired") == []
    assert len(lines_about("live")) > 10
    forget_release("live")


def test_forgetting_a_release_that_never_scored_is_no_error():
    forget_release("never seen")


def test_a_release_that_begins_to_score_shows_its_series_at_zero():
    serve_release("new", ["gan"])
    fakes = {"family": "gan", "release": "new"}
    assert REGISTRY.get_sample_value("forgewatch_detector_fakes_total", fakes) == 0
    for label in ("real", "fake", "unknown"):
        labels = {"label": label, "release": "new"}
        assert REGISTRY.get_sample_value("forgewatch_detector_verdicts_total", labels) == 0
    assert REGISTRY.get_sample_value("forgewatch_detector_energy_count", {"release": "new"}) == 0
    assert REGISTRY.get_sample_value("forgewatch_detector_serving", {"release": "new"}) == 1
    forget_release("new")


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("forgewatch_detector_swaps_total", {"outcome": "refused"}),
        ("forgewatch_detector_dead_letters_total", {"stage": "decode", "reason": "unknown_format"}),
        ("forgewatch_detector_dead_letters_total", {"stage": "envelope", "reason": "dataref_missing"}),
        ("forgewatch_detector_dead_letters_total", {"stage": "commit", "reason": "record_too_large"}),
        ("forgewatch_detector_told_videos_total", {"label": "real"}),
        ("forgewatch_ingest_sandbox_restarts_total", {"reason": "timeout"}),
    ],
)
def test_a_counter_is_there_before_its_first_event(name, labels):
    # One whose first value is 100 has an increase of 0, and nobody is told.
    assert REGISTRY.get_sample_value(name, labels) is not None


def judged(label, family, **changes):
    verdict = make_verdict(make_item(), label=label, family=family, release="c" * 64, **changes)
    return Judged(InRecord("media", 0, 0, 0, None, b"", ()), verdict, None, None, "score", None, "c" * 12)


def test_fakes_are_counted_by_family_and_what_is_unknown_is_no_fake_of_the_likeliest_one():
    FAKES.clear()
    called = [("fake", "gan"), ("fake", "gan"), ("unknown", "gan"), ("real", None)]
    count_committed([judged(*one) for one in called], [0.0] * 4)
    counted = [(s.labels, s.value) for m in FAKES.collect() for s in m.samples if s.name.endswith("_total")]
    assert counted == [({"family": "gan", "release": "cccccccccccc"}, 2)]
    forget_release("cccccccccccc")


def test_videos_with_a_told_stretch_are_counted_by_what_they_are_called():
    def counted():
        name = "forgewatch_detector_told_videos_total"
        return [REGISTRY.get_sample_value(name, {"label": label}) for label in ("real", "unknown")]

    before = counted()
    told = Segment(start_s=0, end_s=1, frames=(0, 24), score=0.9, box=(0, 0, 8, 8))
    real = [judged("real", None, segments=one) for one in ((told,), (told, told), (), None)]
    count_committed([*real, judged("unknown", None, segments=(told,))], [0.0] * 5)
    assert np.subtract(counted(), before).tolist() == [2, 1]
    forget_release("cccccccccccc")


def test_second_looks_are_counted_by_what_the_release_can_add_and_did():
    def counted():
        return [
            REGISTRY.get_sample_value(f"forgewatch_detector_{what}_total", {"outcome": outcome})
            for what in ("maps", "scans")
            for outcome in ("made", "failed")
        ]

    before = counted()
    scan = Scan(frames=1, step_s=0, threshold=0.5, times_s=(0.0,), scores=(0.1,))
    video = make_verdict(make_item(), kind="video")
    verdicts = [
        make_verdict(make_item()),
        video,
        video.model_copy(update={"scan": scan, "segments": ()}),
        video.model_copy(update={"label": "real"}),
    ]
    name = "forgewatch_detector_looks_left_out_total"
    left_out = REGISTRY.get_sample_value(name, {"look": "scan"}) or 0
    count_second_looks(["scan", "map"], [video.model_copy(update={"left_out": ("scan", "map")})])
    assert counted() == before
    assert REGISTRY.get_sample_value(name, {"look": "scan"}) == left_out + 1
    count_second_looks(["scan"], verdicts)
    count_second_looks(["map"], verdicts[:1])
    assert np.subtract(counted(), before).tolist() == [0, 1, 1, 2]


TRACE = TraceContext("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
RECORD = InRecord("media", 3, 17, 0, None, b"", ())
RELEASE = "c" * 12
ABOUT = {"item": "media-3-17", "topic": "media", "partition": 3, "offset": 17, "release": RELEASE}


@pytest.fixture
def level(request):
    """Logs what is at least of this level, as a process does."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(request.param))


def scored():
    verdict = make_verdict(make_item(17, partition=3), label="fake", family="gan", release="c" * 64)
    return Judged(RECORD, verdict, None, None, "score", TRACE, RELEASE)


@pytest.mark.parametrize("level", ["info"], indirect=True)
def test_a_verdict_is_no_line_at_the_normal_level(level):
    with capture_logs() as lines:
        log_verdict(scored(), None)
    assert lines == []


@pytest.mark.parametrize("level", ["debug"], indirect=True)
def test_a_verdict_is_one_line_for_debugging_that_says_of_which_item_and_release(level):
    with capture_logs() as lines:
        log_verdict(scored(), None)
    (line,) = lines
    assert line["log_level"] == "debug"
    expected = ABOUT | {"trace_id": TRACE.trace_id, "label": "fake", "family": "gan"}
    assert expected.items() <= line.items()


@pytest.mark.parametrize("level", ["info"], indirect=True)
def test_a_dead_letter_is_a_line_in_one_printable_piece(level):
    with capture_logs() as lines:
        corrupt = DecodeError("corrupt", "broken\n\x1b[31m file")
        log_verdict(Judged(RECORD, None, None, corrupt, "decode", TRACE, RELEASE), None)
        refused = UnscorableError("refused", ValueError("no"))
        log_verdict(Judged(RECORD, None, None, refused, "score", None, RELEASE), None)
    first, second = lines
    assert ABOUT.items() <= first.items()
    assert (first["stage"], first["reason"], first["trace_id"]) == ("decode", "corrupt", TRACE.trace_id)
    assert first["error"].isprintable()
    assert "trace_id" not in second
    assert json.loads(json.dumps(lines)) == lines

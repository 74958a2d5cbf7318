"""status and doctor see what a living detector is troubled by, in the metrics that it really writes."""

import http.server
import threading

import pytest
from prometheus_client import MetricsHandler, generate_latest

from deploy.doctor.diagnosis import examine
from deploy.records import PartitionLag
from deploy.server.status import complaints, processes_health
from detector import metrics
from detector.serving.rollout_source import STATES
from ingest.process.health import Heartbeat, serve_health


def metrics_say(state, *, unserved_since=0.0, serving=True):
    for each in STATES:
        metrics.ROLLOUT_STATE.labels(each).set(each == state)
    metrics.UNSERVED_SINCE.labels("stable").set(unserved_since)
    metrics.SERVING.labels("0" * 12).set(serving)
    return generate_latest().decode()


@pytest.fixture(autouse=True)
def _no_complaint_is_left():
    """A process has its metrics once: earlier tests' do not count here, nor these later."""
    metrics.UNSERVED_SINCE.clear()
    metrics.SERVING.clear()
    yield
    metrics.UNSERVED_SINCE.clear()
    metrics_say("confirmed", serving=False)


@pytest.fixture
def detector():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), MetricsHandler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/metrics"
    server.shutdown()
    server.server_close()


def test_a_detector_that_serves_what_it_should_complains_of_nothing():
    assert complaints(metrics_say("confirmed")) == []
    assert complaints(metrics_say("nothing_approved", serving=False)) == []
    assert complaints("no metrics\n at all") == []


@pytest.mark.parametrize(
    ("state", "told"),
    [
        ("unconfirmed", "does not confirm"),
        ("unreachable", "cannot reach deploy"),
        ("refused", "deploy refuses its token"),
        ("nothing_approved", "approved nothing"),
    ],
)
def test_what_deploy_does_not_stand_by_is_told(state, told):
    (complaint,) = complaints(metrics_say(state))
    assert told in complaint


def test_an_updater_whose_token_is_refused_is_told():
    gauge = "# TYPE forgewatch_updater_token_refused gauge\nforgewatch_updater_token_refused"
    assert [len(complaints(f"{gauge} {value}\n")) for value in (0, 1)] == [0, 1]


def test_a_release_that_is_not_served_is_told_with_its_time(detector):
    metrics_say("confirmed", unserved_since=86400.0)
    (health,) = processes_health({"detector": detector})
    assert health.alive
    assert health.problem is not None
    assert "stable" in health.problem
    assert "1970-01-02 00:00:00 UTC" in health.problem


def test_doctor_names_the_trouble(served, detector, monkeypatch):
    monkeypatch.setenv("FORGEWATCH_DEPLOY_URL", served)
    monkeypatch.setenv("FORGEWATCH_DEPLOY_HEALTH_URLS", f'{{"detector": "{detector}"}}')
    metrics_say("confirmed")
    assert examine("served release").ok
    metrics_say("unconfirmed")
    finding = examine("served release")
    assert not finding.ok
    assert finding.found.startswith("detector: ")
    assert finding.advice


@pytest.mark.parametrize(
    ("first", "then", "says"),
    [
        ((9, 9, 0), (9, 9, 0), "nothing waits"),
        (
            (7, 9, 2),
            (7, 9, 2),
            "stands still on media/0 with 2 to read, 2 of them behind an open transaction",
        ),
        ((3, 9, 0), (3, 9, 0), "stands still on media/0 with 6 to read"),
        ((3, 9, 2), (7, 9, 2), "6 records wait, and are being read"),
        ((9, 9, 0), (9, 12, 0), "nothing waits"),
    ],
)
def test_doctor_says_what_waits_and_for_whom(first, then, says, monkeypatch):
    looks = [
        [
            PartitionLag(
                group="g", topic="media", partition=0, committed=at, end=end, lag=end - at, held_back=held
            )
        ]
        for at, end, held in (first, then)
    ]
    monkeypatch.setattr("deploy.doctor.stack._behind", lambda: looks.pop(0))
    monkeypatch.setattr("deploy.doctor.stack._WATCH_LAG_S", 0)
    finding = examine("lag")
    assert finding.found.endswith(says)
    assert finding.ok == ("still" not in says)
    assert ("commit or abort" in finding.advice) == ("2 to read, 2" in says)


def test_a_process_that_is_not_ready_lives_and_says_why():
    heartbeat = Heartbeat(max_age_s=60)
    heartbeat.beat("no release is served yet")
    with serve_health("127.0.0.1", 0, heartbeat) as address:
        (found,) = processes_health({"detector": f"{address}/metrics"})
        assert (found.alive, found.problem) == (True, "no release is served yet")
        heartbeat.beat()
        (found,) = processes_health({"detector": f"{address}/metrics"})
        assert (found.alive, found.problem) == (True, None)


def test_a_process_whose_loop_is_stuck_does_not_live_though_it_answers():
    with serve_health("127.0.0.1", 0, Heartbeat(max_age_s=-1)) as address:
        (found,) = processes_health({"memory": f"{address}/metrics"})
    assert not found.alive
    assert "the loop has been silent" in str(found.problem)

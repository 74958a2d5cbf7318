"""The doctor tells the truth of what is served: ledger, topic and detectors, each against the others."""

import json
import sqlite3
import threading
from contextlib import closing

import pytest
import uvicorn
from prometheus_client import start_http_server

from deploy.app import create_app
from deploy.doctor.diagnosis import examine
from deploy.local.processes import free_port
from deploy.releases.ledger import Move
from deploy.releases.publish import write_rollout
from deploy.server.services import open_services
from deploy.settings import DeploySettings
from detector import metrics
from detector.records import RELEASES, Rollout
from ingest.kafka.access import kafka_options
from updater.records import Candidate

pytestmark = pytest.mark.system

A, B = "a" * 64, "b" * 64


@pytest.fixture
def services(settings, make_topic, tmp_path, monkeypatch):
    """A server that answers, whose ledger and topic say that A is live; it looks at its topic when told."""
    monkeypatch.chdir(tmp_path)
    port = free_port()
    monkeypatch.setenv("FORGEWATCH_INGEST_BOOTSTRAP_SERVERS", str(settings.bootstrap_servers))
    monkeypatch.setenv("FORGEWATCH_INGEST_TOPIC_PREFIX", settings.topic_prefix)
    make_topic(compacted=True, name=settings.topic(RELEASES))
    monkeypatch.setenv("FORGEWATCH_DEPLOY_URL", f"http://127.0.0.1:{port}")
    with open_services(DeploySettings()) as opened:
        server = uvicorn.Server(
            uvicorn.Config(create_app(DeploySettings(), opened), port=port, log_config=None)
        )
        thread = threading.Thread(target=server.run)
        thread.start()
        while not server.started:
            assert thread.is_alive()
            thread.join(0.02)
        candidate = Candidate(
            digest=A, evaluation_digest=B, parent=None, update=1, classes=("real", "blend"), gates=()
        )
        opened.ledger.append(
            lambda history: [
                Move("ada", "propose", A, B, candidate=candidate),
                Move("ada", "approve", A, B),
                Move("ada", "promote", A, B),
            ]
        )
        assert opened.publisher.heal() is None
        yield opened
        server.should_exit = True
        thread.join()


@pytest.fixture
def metrics_port(monkeypatch):
    """Where the detector's own metrics are read, as the deploy settings say."""
    server, thread = start_http_server(0, "127.0.0.1")
    address = f"http://127.0.0.1:{server.server_port}/metrics"
    monkeypatch.setenv("FORGEWATCH_DEPLOY_HEALTH_URLS", json.dumps({"detector": address}))
    # What tests before in this process have left of a worker's own.
    metrics.SERVING.clear()
    metrics.ROLLOUT_STATE.clear()
    yield server.server_port
    metrics.SERVING.clear()
    server.shutdown()
    server.server_close()
    thread.join()


def write(settings, rollout):
    write_rollout(kafka_options(settings), settings.topic(RELEASES), rollout, 10)


def test_a_topic_that_agrees_is_well_and_one_with_anothers_record_is_not(services, settings):
    assert examine("releases topic").found == "topic and ledger agree"
    foreign = Rollout(ledger="f" * 32, epoch=0, sequence=1, stable=B)
    write(settings, foreign)
    found = examine("releases topic")
    assert not found.ok
    assert f"names release {B[:12]} (ledger ffffffffffff" in found.found
    assert f"the ledger says release {A[:12]}" in found.found
    assert services.publisher.heal() is None
    mended = examine("releases topic")
    assert mended.ok
    assert "since the epoch was raised" in mended.found
    write(settings, foreign.model_copy(update={"epoch": 7}))
    assert "outranked again at" in (services.publisher.heal() or "")
    assert not examine("releases topic").ok


def test_two_servers_over_one_topic_are_told_from_one_restored_ledger(services, settings):
    for epoch in (1, 2):
        move = Move("deploy server", "raise epoch", "", "", "another deploy server", epoch=epoch)
        services.ledger.append(lambda history, move=move: [move])
    services.publisher.heal()
    found = examine("releases topic")
    assert not found.ok
    assert "outranked 2 times within a day" in found.found
    assert "one deploy server alone" in found.advice


def test_a_changed_ledger_is_named_with_its_row(services):
    assert examine("ledger").found == "3 events, none changed"
    path = DeploySettings().database_url.removeprefix("sqlite:///")
    with closing(sqlite3.connect(path, isolation_level=None)) as shell:
        shell.execute("DROP TRIGGER deploy_ledger_no_update")
        shell.execute("UPDATE deploy_ledger SET actor = 'eve' WHERE sequence = 2")
    found = examine("ledger")
    assert not found.ok
    assert "row 2 of the ledger was changed" in found.found


@pytest.mark.usefixtures("services", "metrics_port")
def test_a_detector_that_scores_by_another_release_than_the_ledgers_is_wrong():
    assert "detector scores by no release" in examine("served release").found
    metrics.SERVING.labels(B[:12]).set(1)
    found = examine("served release")
    assert not found.ok
    assert f"detector scores by {B[:12]}, the ledger says {A[:12]}" in found.found
    metrics.SERVING.labels(B[:12]).set(0)
    metrics.SERVING.labels(A[:12]).set(1)
    assert examine("served release").ok

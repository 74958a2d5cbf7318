"""The server as a whole: who gets in, status, updates, metrics, OpenAPI."""

import asyncio
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import httpx
import pytest
import uvicorn
from fastapi import FastAPI
from fastapi.testclient import TestClient
from prometheus_client import REGISTRY
from pydantic import SecretStr

from deploy.access.guard import refuse_insecure
from deploy.app import create_app
from deploy.process import Server, serve
from deploy.server.services import open_services
from deploy.settings import DeploySettings
from ingest.process.frame import Process, ProcessSettings, WrongSettingError
from ingest.process.health import Heartbeat


def test_with_a_token_only_its_bearer_gets_in(settings):
    guarded = settings.model_copy(update={"token": SecretStr("s3cret")})
    with (
        open_services(guarded) as services,
        TestClient(create_app(guarded, services), base_url="http://deploy.example") as client,
    ):
        assert client.get("/healthz").status_code == 200
        assert client.get("/runbooks/ForgewatchNoTraffic.md").text.startswith("# ForgewatchNoTraffic\n")
        for name in ("status", "rollout", "releases", "clusters", "labels", "updates", "ledger", "record"):
            path = f"/{name}"
            assert client.get(path).status_code == 401
            wrong = client.get(path, headers={"Authorization": "Bearer s3cre"})
            assert wrong.status_code == 401
        assert client.get("/rollout", headers={"Authorization": "Bearer s3cret"}).status_code == 200


def test_a_cluster_is_labelled_by_the_version_that_was_listed_alone(http):
    refused = http.post("/labels", json={"cluster": "c", "family": "real"})
    assert (refused.status_code, "give its version" in refused.text) == (422, True)


def test_without_a_token_a_foreign_host_name_is_refused(http):
    assert http.get("/rollout", headers={"Host": "rebound.example"}).status_code == 400
    assert http.get("/rollout", headers={"Host": "localhost:8700"}).status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "deploy.example"])
def test_a_host_beyond_loopback_needs_a_token(host):
    with pytest.raises(WrongSettingError, match="FORGEWATCH_DEPLOY_TOKEN"):
        refuse_insecure(DeploySettings(host=host))
    refuse_insecure(DeploySettings(host=host, token=SecretStr("t")))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.8.8"])
def test_loopback_needs_none(host):
    refuse_insecure(DeploySettings(host=host))


def test_an_empty_token_is_no_token():
    with pytest.raises(WrongSettingError, match="empty"):
        refuse_insecure(DeploySettings(token=SecretStr("")))


def test_the_status_names_what_does_not_answer_instead_of_failing(http):
    status = http.get("/status").json()
    assert status["live"] is None
    assert status["unknowns_waiting"] == 0
    assert "broker" in status["lag_problem"]
    assert [(process["name"], process["alive"]) for process in status["processes"]] == [("detector", False)]


def test_the_status_shows_who_waits_for_approval(http, make_artifact, propose):
    artifact = make_artifact()
    propose(artifact)
    assert [release["digest"] for release in http.get("/status").json()["proposed"]] == [artifact.digest]


def test_updates_can_be_asked_for_and_followed(http):
    asked = http.post("/updates")
    assert asked.status_code == 202
    run = asked.json()
    assert (run["state"], run["trigger"], run["requested_by"]) == ("queued", "manual", "ada")
    assert http.get(f"/updates/{run['id']}").json() == run
    assert http.get("/updates").json() == [run]
    assert http.get("/updates/999").status_code == 404


def test_every_operation_is_described_in_the_schema(http):
    schema = http.get("/openapi.json").json()
    operations = [operation for path in schema["paths"].values() for operation in path.values()]
    assert len(operations) >= 20
    assert all(operation.get("description") for operation in operations)


def test_the_gauges_follow_the_ledger(http, make_artifact, propose):
    propose(make_artifact())
    assert REGISTRY.get_sample_value("forgewatch_deploy_releases", {"state": "proposed"}) == 1
    assert REGISTRY.get_sample_value("forgewatch_deploy_ledger_sequence") == 1


MAX_AGE_S = 6.0
THREADS = 40
"""Of the pool that answers requests, as the server's library sets it."""


@pytest.fixture
def process():
    made = Process(ProcessSettings())
    made.heartbeat = Heartbeat(MAX_AGE_S)
    return made


@pytest.fixture
def blocked(process):
    """A server whose one answer waits for the event; its address, and the event."""
    app, free = FastAPI(), threading.Event()

    @app.get("/")
    def answer() -> str:
        free.wait(60)
        return "done"

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = Server(uvicorn.Config(app, log_config=None, access_log=False))
        thread = threading.Thread(target=lambda: asyncio.run(serve(server, listener, process)))
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/", free
        finally:
            free.set()
            process.stop.set()
            thread.join(30)
            assert not thread.is_alive()


@pytest.mark.slow
def test_a_server_that_can_answer_nothing_any_more_is_stuck(process, blocked):
    address, free = blocked
    with ThreadPoolExecutor(THREADS) as clients:
        asked = [clients.submit(httpx.get, address, timeout=60) for _ in range(THREADS - 1)]
        until = time.monotonic() + 2 * MAX_AGE_S
        while time.monotonic() < until:  # one thread is left, and that is enough
            assert process.heartbeat.silence_problem() is None
            time.sleep(0.01)
        asked.append(clients.submit(httpx.get, address, timeout=60))
        until = time.monotonic() + 120
        while process.heartbeat.silence_problem() is None:
            assert time.monotonic() < until
            time.sleep(0.01)
        free.set()
        assert {each.result().status_code for each in asked} == {200}
        while process.heartbeat.silence_problem() is not None:
            assert time.monotonic() < until
            time.sleep(0.01)


def test_status_names_the_next_three_due_times(monkeypatch, settings, request):
    monkeypatch.setenv("FORGEWATCH_UPDATER_SCHEDULE", "0 3 * * 0")
    due = request.getfixturevalue("http").get("/status").json()["due"]
    assert [datetime.fromisoformat(each).isoweekday() for each in due] == [7, 7, 7]

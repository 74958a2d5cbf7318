"""The server as a whole: who gets in, status, updates, metrics, OpenAPI."""

from collections.abc import Callable

import pytest
from fastapi.testclient import TestClient
from prometheus_client import REGISTRY
from pydantic import SecretStr

from deploy.server.access import refuse_insecure
from deploy.server.app import create_app
from deploy.server.services import Services
from deploy.settings import DeploySettings
from detector.release.artifact import Artifact
from ingest.process.frame import WrongSettingError

Make = Callable[..., Artifact]
Put = Callable[[Artifact], None]


def test_with_a_token_only_its_bearer_gets_in(settings: DeploySettings, services: Services) -> None:
    guarded = settings.model_copy(update={"token": SecretStr("s3cret")})
    with TestClient(create_app(guarded, services), base_url="http://deploy.example") as client:
        assert client.get("/healthz").status_code == 200
        for path in ("/status", "/rollout", "/releases", "/clusters", "/labels", "/updates", "/ledger"):
            assert client.get(path).status_code == 401
            wrong = client.get(path, headers={"Authorization": "Bearer s3cre"})
            assert wrong.status_code == 401
        assert client.get("/rollout", headers={"Authorization": "Bearer s3cret"}).status_code == 200


def test_without_a_token_a_foreign_host_name_is_refused(http: TestClient) -> None:
    assert http.get("/rollout", headers={"Host": "rebound.example"}).status_code == 400
    assert http.get("/rollout", headers={"Host": "localhost:8700"}).status_code == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "deploy.example"])
def test_a_host_beyond_loopback_needs_a_token(host: str) -> None:
    with pytest.raises(WrongSettingError, match="FORGEWATCH_DEPLOY_TOKEN"):
        refuse_insecure(DeploySettings(host=host))
    refuse_insecure(DeploySettings(host=host, token=SecretStr("t")))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost", "127.8.8.8"])
def test_loopback_needs_none(host: str) -> None:
    refuse_insecure(DeploySettings(host=host))


def test_an_empty_token_is_no_token() -> None:
    with pytest.raises(WrongSettingError, match="empty"):
        refuse_insecure(DeploySettings(token=SecretStr("")))


def test_the_status_names_what_does_not_answer_instead_of_failing(http: TestClient) -> None:
    status = http.get("/status").json()
    assert status["live"] is None
    assert status["unknowns_waiting"] == 0
    assert "broker" in status["lag_problem"]
    assert [(process["name"], process["alive"]) for process in status["processes"]] == [("detector", False)]


def test_the_status_shows_who_waits_for_approval(http: TestClient, make_artifact: Make, propose: Put) -> None:
    artifact = make_artifact()
    propose(artifact)
    assert [release["digest"] for release in http.get("/status").json()["proposed"]] == [artifact.digest]


def test_updates_can_be_asked_for_and_followed(http: TestClient) -> None:
    asked = http.post("/updates")
    assert asked.status_code == 202
    run = asked.json()
    assert (run["state"], run["trigger"], run["requested_by"]) == ("queued", "manual", "ada")
    assert http.get(f"/updates/{run['id']}").json() == run
    assert http.get("/updates").json() == [run]
    assert http.get("/updates/999").status_code == 404


def test_every_operation_is_described_in_the_schema(http: TestClient) -> None:
    schema = http.get("/openapi.json").json()
    operations = [operation for path in schema["paths"].values() for operation in path.values()]
    assert len(operations) >= 20
    assert all(operation.get("description") for operation in operations)


def test_the_gauges_follow_the_ledger(http: TestClient, make_artifact: Make, propose: Put) -> None:
    propose(make_artifact())
    assert REGISTRY.get_sample_value("forgewatch_deploy_releases", {"state": "proposed"}) == 1
    assert REGISTRY.get_sample_value("forgewatch_deploy_ledger_sequence") == 1

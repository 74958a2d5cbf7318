"""The deploy server over a real S3 server: two of them at once, one that ends, and a store that is away."""

import os
import signal
import sys
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

import deploy
from deploy.app import create_app
from deploy.doctor.diagnosis import examine
from deploy.local.processes import free_port, start, stop
from deploy.local.stack import await_answer, process_address
from deploy.process import hindrance
from deploy.server.services import open_services
from deploy.settings import DeploySettings
from detector.release.artifact import MANIFEST, WEIGHTS
from detector.serving.rollout_source import fetch
from detector.settings import DetectorSettings
from memory.crops import object_store

pytestmark = pytest.mark.slow


@pytest.fixture
def settings(bucket, settings, monkeypatch):
    monkeypatch.setenv("FORGEWATCH_DEPLOY_ARTIFACTS_URL", f"{bucket}/artifacts")
    monkeypatch.setenv("FORGEWATCH_MEMORY_CROPS_URL", f"{bucket}/crops")
    return DeploySettings()


@pytest.fixture
def other(settings, services):
    """A second server over the same database and bucket."""
    with (
        open_services(settings) as opened,
        TestClient(
            create_app(settings, opened),
            base_url="http://127.0.0.1:8700",
            headers={"X-Forgewatch-Actor": "bob"},
        ) as client,
    ):
        yield client


def put_by_turns(servers, artifact):
    for number, name in enumerate((*artifact.manifest.files, MANIFEST)):
        content = (artifact.folder / name).read_bytes()
        answer = servers[number % len(servers)].put(f"/artifacts/{artifact.digest}/{name}", content=content)
        assert answer.status_code == 204, answer.text


def test_two_servers_take_an_artifact_live_by_turns(
    http, other, served, make_artifact, candidate_of, tmp_path
):
    artifact = make_artifact()
    candidate = candidate_of(artifact)
    put_by_turns([http, other], artifact)
    proposed = other.post("/releases", json=candidate.model_dump(mode="json"))
    assert proposed.status_code == 201, proposed.text
    body = {"evaluation_digest": candidate.evaluation_digest}
    approved = http.post(f"/releases/{artifact.digest}/approve", json=body)
    assert approved.json()["state"] == "live", approved.text
    for server in (http, other):
        assert server.get(f"/artifacts/{artifact.digest}/{WEIGHTS}").content == (
            (artifact.folder / WEIGHTS).read_bytes()
        )
        assert server.get(f"/artifacts/{artifact.digest}/reference.safetensors").status_code == 404
    fetched = fetch(artifact.digest, tmp_path / "cache", DetectorSettings(deploy_url=served))
    assert fetched.digest == artifact.digest


def test_a_store_that_is_away_is_a_503_and_nothing_is_lost(line, http, services, make_artifact, monkeypatch):
    artifact = make_artifact()
    put_by_turns([http], artifact)
    assert (services.artifacts.hindrance(), services.crops.hindrance()) == (None, None)
    assert examine("files").ok
    line.fails = True
    monkeypatch.setattr(object_store, "CALL_S", 20.0)
    for answer in (
        http.get(f"/artifacts/{artifact.digest}/{WEIGHTS}"),
        http.put(f"/artifacts/{'a' * 64}/{WEIGHTS}", content=b"x"),
    ):
        assert answer.status_code == 503
        assert "the object store failed" in answer.json()["detail"]
    assert "no artifact can be stored" in str(services.artifacts.hindrance())
    found = examine("files")
    assert not found.ok
    assert found.found.startswith("FORGEWATCH_MEMORY_CROPS_URL: the object store failed: 503")
    line.fails = False
    assert http.get(f"/artifacts/{artifact.digest}/{WEIGHTS}").status_code == 200


def test_a_server_whose_bucket_is_missing_runs_and_is_not_ready(bucket, settings, monkeypatch):
    class Started:
        started = True

    for missing, url in (("no-such-bucket", "s3://no-such-bucket/a"), (None, f"{bucket}/artifacts")):
        monkeypatch.setenv("FORGEWATCH_DEPLOY_ARTIFACTS_URL", url)
        with open_services(DeploySettings()) as services:
            problem = hindrance(Started(), services)
        assert problem is None if missing is None else missing in str(problem)


def test_the_process_takes_no_url_of_another_kind(tmp_path, fork):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FORGEWATCH_")}
    for url, said in (("ftp2://x/y", "no kind of URL"), ("s3://", "the bucket is missing")):
        artifacts = {"FORGEWATCH_DEPLOY_ARTIFACTS_URL": url}
        process = fork(Path(deploy.__file__).with_name("__main__.py"), environment | artifacts, cwd=tmp_path)
        (line,) = process.stderr
        assert process.wait(60) == 2, line
        assert "FORGEWATCH_DEPLOY_ARTIFACTS_URL" in line
        assert said in line


def test_a_process_on_a_bucket_answers_probes_and_ends_when_it_is_told(bucket, settings, tmp_path):
    port = free_port()
    environment = os.environ | {"FORGEWATCH_DEPLOY_METRICS_PORT": str(port), "FORGEWATCH_DEPLOY_PORT": "0"}
    command, log = [sys.executable, "-m", "deploy"], tmp_path / "log"
    process = start("deploy", command, log=log, environment=environment, folder=tmp_path)
    assert process.handle is not None
    try:
        await_answer(process, process_address(port, "readyz"))
        process.handle.send_signal(signal.SIGTERM)
        assert process.handle.wait(30) == 0
    finally:
        stop(process)

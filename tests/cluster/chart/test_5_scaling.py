"""The detector is scaled by processor time and, once KEDA is there, by lag; nothing is lost by either."""

import json
import os
import shutil
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.local.processes import start, stop, wait_until

pytestmark = pytest.mark.cluster

NODE = "10.77.0.1"
BURST = 600
"""items sent at once: a minute's work for one detector on two busy cores"""
PARTITIONS = 4
MANY = 5 * PARTITIONS
"""pods that the burst is work for, by the threshold of lag: the partitions bound them"""


@pytest.fixture(scope="module")
def serve(make_namespace, tmp_path_factory):
    """Starts programs on the node beside the cluster, and has the API server ask them for metrics."""
    folder = tmp_path_factory.mktemp("autoscalers")
    running = []

    def serve(namespace, group, port, **programs):
        if missing := [name for name in programs if shutil.which(name.replace("_", "-")) is None]:
            pytest.skip(f"{', '.join(missing)}: not built; tests/cluster/build_autoscalers.sh does it")
        kubectl = make_namespace(namespace)
        for each in _asked_at(namespace, group, port):
            kubectl("apply", "-f", "-", stdin=json.dumps(each))
        pod = {"POD_NAMESPACE": namespace, "KEDA_CLUSTER_OBJECT_NAMESPACE": namespace, "WATCH_NAMESPACE": ""}
        for name, options in programs.items():
            child = start(
                name,
                [name.replace("_", "-"), *options],
                log=folder / f"{name}.log",
                environment=os.environ | pod | {"POD_NAME": name.replace("_", "-")},
                folder=folder,
            )
            running.append(child)
        wait_until(running[-1], lambda: _answers(kubectl, group), 120)

    yield serve
    for child in reversed(running):
        stop(child)


def _asked_at(namespace, group, port):
    """A Service that leads to a port of the node, and the group of the API that it serves."""
    meta = {"name": "metrics", "namespace": namespace}
    version = "v1beta1"
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta,
            "spec": {"ports": [{"port": 443, "targetPort": port}]},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": meta | {"labels": {"kubernetes.io/service-name": "metrics"}},
            "addressType": "IPv4",
            "ports": [{"port": port, "protocol": "TCP", "name": ""}],
            "endpoints": [{"addresses": [NODE], "conditions": {"ready": True}}],
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": f"{version}.{group}"},
            "spec": {
                "service": {"name": "metrics", "namespace": namespace},
                "group": group,
                "version": version,
                "insecureSkipTLSVerify": True,
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
            },
        },
    ]


def _answers(kubectl, group):
    conditions = kubectl.get("apiservice", f"v1beta1.{group}").get("status", {}).get("conditions", [])
    return any(each["type"] == "Available" and each["status"] == "True" for each in conditions)


@pytest.fixture(scope="module")
def metrics_server(serve):
    """What tells an autoscaler of processor time, on a port of the node."""
    login = [f"--{name}={os.environ['KUBECONFIG']}" for name in ("kubeconfig", *_LOGINS)]
    options = ["--secure-port=4443", "--cert-dir=metrics-server", "--metric-resolution=15s"]
    reach = ["--kubelet-insecure-tls", "--kubelet-preferred-address-types=InternalIP"]
    serve("metrics-server", "metrics.k8s.io", 4443, metrics_server=[*login, *options, *reach])


_LOGINS = ("authentication-kubeconfig", "authorization-kubeconfig")


@pytest.fixture(scope="module")
def keda(serve, chart, tmp_path_factory):
    """KEDA: its kinds, its operator, and its adapter, which asks the operator for each metric."""
    kinds = Path(os.environ["FORGEWATCH_CLUSTER"]) / "keda-crds"
    if not kinds.is_dir():
        pytest.skip("KEDA is not built; tests/cluster/build_autoscalers.sh does it")
    chart.kubectl("apply", "--server-side", "-f", str(kinds))
    certificates = tmp_path_factory.mktemp("keda")
    _certify(certificates)
    name = "keda-operator.keda.svc.cluster.local"
    login = [f"--{name}={os.environ['KUBECONFIG']}" for name in ("kubeconfig", "lister-kubeconfig", *_LOGINS)]
    serve(
        "keda",
        "external.metrics.k8s.io",
        4444,
        keda_operator=[
            *(login[0], f"--cert-dir={certificates}", "--enable-cert-rotation=false", "--leader-elect=false"),
            *("--metrics-bind-address=:18480", "--health-probe-bind-address=:18481"),
            *("--enable-webhook-patching=false", "--enable-apiservice-patching=false"),
        ],
        keda_adapter=[
            *(*login, f"--cert-dir={certificates}", "--secure-port=4444", "--port=18482"),
            *("--metrics-service-address=127.0.0.1:9666", f"--metrics-service-grpc-authority={name}"),
        ],
    )


def _certify(folder):
    """An authority and one certificate of it, as KEDA's operator makes them for itself and its adapter."""
    name = "keda-operator.keda.svc.cluster.local"
    new = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    for command in (
        [*new, "-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=ca"],
        [
            *(*new, "-keyout", "tls.key", "-out", "tls.crt", "-subj", f"/CN={name}"),
            *("-CA", "ca.crt", "-CAkey", "ca.key", "-addext", f"subjectAltName=DNS:{name}"),
            *("-addext", "extendedKeyUsage=serverAuth,clientAuth", "-addext", "basicConstraints=CA:FALSE"),
        ],
    ):
        subprocess.run(command, cwd=folder, check=True, capture_output=True)


class Replicas:
    """How many detectors are wanted, and when that changed: seconds from the beginning, and the number."""

    def __init__(self, chart):
        self._chart = chart
        self._begun = time.monotonic()
        self.seen = []

    def wanted(self):
        deployment = self._chart.kubectl.get("deployment", f"{self._chart.name}-detector")
        count = int(deployment["spec"]["replicas"])
        if not self.seen or self.seen[-1][1] != count:
            self.seen.append((round(time.monotonic() - self._begun, 1), count))
        return count

    def until(self, what, condition):
        self._chart.kubectl.until(what, lambda: condition(self.wanted()), 600)


@contextmanager
def autoscaled(chart, **values):
    """The chart with its autoscaling on, and off again at the end, with one detector."""
    on = {"enabled": "true", "minReplicas": 1, "scaleDownWindowS": 30, **values}
    chart.upgrade(",".join(f"detector.autoscaling.{name}={value}" for name, value in on.items()))
    try:
        yield
    finally:
        chart.upgrade("detector.autoscaling.enabled=false,detector.replicas=1")
        chart.kubectl.until("one detector", lambda: len(chart.pods("detector")) == 1)


def test_without_keda_the_processor_time_scales_it_out_and_in(chart, stream, metrics_server):
    enough = "requests.cpu=300m"  # of each container: a pod at work takes more than both, an idle one less
    chart.upgrade(f"detector.resources.{enough},detector.torchserve.resources.{enough}")
    with autoscaled(chart, maxReplicas=3):
        (scaler,) = chart.kubectl.get("horizontalpodautoscaler")["items"]
        assert scaler["spec"]["maxReplicas"] == 3
        _scaled(chart, stream, "scaled by processor time", most=3)


def test_keda_scales_it_on_the_lag_up_to_the_partitions_and_back(chart, stream, keda):
    chart.upgrade("detector.resources.requests.cpu=10m,detector.torchserve.resources.requests.cpu=10m")
    threshold = BURST // MANY
    with autoscaled(chart, maxReplicas=PARTITIONS, lagThreshold=threshold, pollingIntervalS=5):
        chart.kubectl(*("wait", "--for=condition=Ready", "scaledobject", "--all", "--timeout=120s"))
        (scaler,) = chart.kubectl.get("horizontalpodautoscaler")["items"]
        assert scaler["metadata"]["name"] == f"keda-hpa-{chart.name}-detector"
        seen = _scaled(chart, stream, "scaled by KEDA on the lag", most=PARTITIONS)
        assert max(seen) == PARTITIONS
    chart.kubectl.until("no scaler", lambda: not chart.kubectl.get("horizontalpodautoscaler")["items"])


def _scaled(chart, stream, what, most):
    """Send a burst beside the load; the numbers of detectors that were wanted, one after another."""
    replicas = Replicas(chart)
    with stream.loaded(what):
        assert replicas.wanted() == 1
        burst = stream.send(BURST)
        replicas.until("more detectors", lambda count: count > 1)
        stream.await_answers(burst)
        replicas.until("one detector", lambda count: count == 1)
    print(f"  detectors wanted, by seconds: {replicas.seen}")
    assert stream.count("", burst, 0).lost + stream.count("", burst, 0).twice == 0
    assert (stream.rows[-1].lost, stream.rows[-1].twice) == (0, 0)
    counts = [count for _, count in replicas.seen]
    assert max(counts) <= most
    return counts

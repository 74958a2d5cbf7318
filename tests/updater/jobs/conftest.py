"""A real Kubernetes API server with its controllers and scheduler, and no node: the tests play the kubelet.

Its programs (etcd, kube-apiserver, kube-controller-manager, kube-scheduler) are looked for in the folder that
KUBEBUILDER_ASSETS names, then on PATH; where one is missing, the tests that need them are skipped.
"""

import os
import secrets
import shutil
import socket
import subprocess
import time
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
TEMPLATE = "forgewatch-update"
RULES = [
    {"apiGroups": ["batch"], "resources": ["cronjobs"], "resourceNames": [TEMPLATE], "verbs": ["get"]},
    {"apiGroups": ["batch"], "resources": ["jobs"], "verbs": ["create", "list"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list"]},
]


@pytest.fixture(scope="session")
def awaited():
    """Polls until what it is given returns something true, and returns that."""
    return _awaited


def _awaited(found, what, timeout_s=60):
    deadline = time.monotonic() + timeout_s
    while not (value := found()):
        assert time.monotonic() < deadline, f"no {what} within {timeout_s} s"
        time.sleep(0.05)
    return value


@dataclass(frozen=True)
class Server:
    """The API server, asked as its administrator."""

    port: int
    authority: Path
    http: httpx.Client

    def post(self, path, thing):
        answer = self.http.post(path, json=thing)
        assert answer.is_success, answer.text
        return answer.json()

    def items(self, path, **params):
        answer = self.http.get(path, params=params)
        assert answer.is_success, answer.text
        return answer.json()["items"]


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    places = os.pathsep.join(filter(None, [os.environ.get("KUBEBUILDER_ASSETS"), os.environ["PATH"]]))
    programs = {name: shutil.which(name, path=places) for name in PROGRAMS}
    if missing := [name for name, path in programs.items() if path is None]:
        pytest.skip(f"{', '.join(missing)} not in KUBEBUILDER_ASSETS nor on PATH")
    folder, token = tmp_path_factory.mktemp("kubernetes"), secrets.token_hex(16)
    with ExitStack() as running:

        def start(name, *options):
            log = running.enter_context((folder / f"{name}.log").open("wb"))
            process = subprocess.Popen([programs[name], *options], stdout=log, stderr=log, cwd=folder)
            running.callback(process.wait)
            running.callback(process.kill)

        yield _started(folder, token, start, running)


def _started(folder, token, start, running):
    (folder / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')
    key = ["openssl", "genrsa", "-out", "sa.key", "2048"]
    subprocess.run(key, cwd=folder, check=True, capture_output=True)
    etcd, peers, port, manager, scheduler = _free_ports(5)
    own, others = f"http://127.0.0.1:{etcd}", f"http://127.0.0.1:{peers}"
    start(
        "etcd",
        *("--data-dir=etcd", "--unsafe-no-fsync", f"--initial-cluster=default={others}"),
        *(f"--listen-client-urls={own}", f"--advertise-client-urls={own}"),
        *(f"--listen-peer-urls={others}", f"--initial-advertise-peer-urls={others}"),
    )
    start(
        "kube-apiserver",
        *(f"--etcd-servers={own}", "--bind-address=127.0.0.1", f"--secure-port={port}", "--cert-dir=certs"),
        *("--service-account-key-file=sa.key", "--service-account-signing-key-file=sa.key"),
        *("--service-account-issuer=https://kubernetes.default.svc", "--token-auth-file=tokens.csv"),
        *("--authorization-mode=RBAC", "--service-cluster-ip-range=10.96.0.0/16"),
    )
    authority = folder / "certs" / "apiserver.crt"
    _awaited(authority.exists, "certificate")
    http = httpx.Client(
        base_url=f"https://127.0.0.1:{port}",
        verify=False,
        headers={"Authorization": f"Bearer {token}"},
        trust_env=False,
        timeout=30,
    )
    running.callback(http.close)

    def answers(path):
        try:
            return http.get(path).is_success
        except httpx.TransportError:
            return False

    _awaited(lambda: answers("/readyz"), "ready API server")
    (folder / "kubeconfig").write_text(_kubeconfig(port, authority, token))
    ends = ("--kubeconfig=kubeconfig", "--leader-elect=false", "--bind-address=127.0.0.1")
    start("kube-scheduler", *ends, f"--secure-port={scheduler}", "--cert-dir=scheduler")
    start(
        "kube-controller-manager",
        *(*ends, f"--secure-port={manager}", "--cert-dir=manager"),
        *("--service-account-private-key-file=sa.key", f"--root-ca-file={authority}"),
    )
    _awaited(lambda: answers("/api/v1/namespaces/default/serviceaccounts/default"), "controllers")
    return Server(port, authority, http)


def _free_ports(count):
    with ExitStack() as taken:
        sockets = [taken.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]


def _kubeconfig(port, authority, token):
    return f"""apiVersion: v1
kind: Config
clusters: [{{name: c, cluster: {{server: "https://127.0.0.1:{port}", certificate-authority: "{authority}"}}}}]
users: [{{name: u, user: {{token: "{token}"}}}}]
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
current-context: c
"""


@dataclass(frozen=True)
class Namespace:
    """A namespace with the service account `updater`, and what the kubelet would do in it."""

    name: str
    server: Server
    folder: Path
    """what the kubelet would mount for that account"""

    def path(self, group, kind, name=""):
        return f"/{group}/namespaces/{self.name}/{kind}{name and f'/{name}'}"

    def allow(self, *, but=()):
        """Give the account what the chart gives it, but no rights on these kinds."""
        rules = [rule for rule in RULES if rule["resources"][0] not in but]
        role = {"metadata": {"name": "updater"}, "rules": rules}
        self.server.post(self.path("apis/rbac.authorization.k8s.io/v1", "roles"), role)
        binding = {
            "metadata": {"name": "updater"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "updater"},
            "subjects": [{"kind": "ServiceAccount", "name": "updater", "namespace": self.name}],
        }
        self.server.post(self.path("apis/rbac.authorization.k8s.io/v1", "rolebindings"), binding)

    def give_template(self, **spec):
        self.server.post(self.path("apis/batch/v1", "cronjobs"), template(**spec))

    def jobs(self):
        return self.server.items(self.path("apis/batch/v1", "jobs"))

    def pods(self):
        return self.server.items(self.path("api/v1", "pods"))

    def pending(self):
        return [pod for pod in self.pods() if pod["status"].get("phase") == "Pending"]

    def evict(self, pod):
        """Say of a pod what an eviction says, and end it as one that was told to stop ends."""
        # With no time of its own, the condition is taken for one left over and set back within a second.
        since = datetime.now(UTC).isoformat(timespec="seconds")
        condition = {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": since}
        self.say(pod, {"conditions": [condition]})
        self.end_pod(pod, exit_code=1)

    def end_pod(self, pod, exit_code):
        """Say of a pod what a kubelet says when its container has ended."""
        container = {"name": "updater", "image": "none", "imageID": "", "ready": False, "restartCount": 0}
        status = {
            "phase": "Failed" if exit_code else "Succeeded",
            "containerStatuses": [container | {"state": {"terminated": {"exitCode": exit_code}}}],
        }
        self.say(pod, status)

    def say(self, pod, status):
        answer = self.server.http.patch(
            self.path("api/v1", "pods", f"{pod['metadata']['name']}/status"),
            json={"status": status},
            headers={"Content-Type": "application/strategic-merge-patch+json"},
        )
        assert answer.is_success, answer.text

    def delete(self, group, kind, name):
        answer = self.server.http.request(
            "DELETE", self.path(group, kind, name), json={"propagationPolicy": "Background"}
        )
        assert answer.is_success, answer.text


def template(**spec):
    container = {"name": "updater", "image": "forgewatch/updater", "command": ["python", "-m", "updater.run"]}
    given_up = {"containerName": "updater", "operator": "In", "values": [2]}
    job = {
        "backoffLimit": 1,
        "podReplacementPolicy": "Failed",
        "podFailurePolicy": {
            "rules": [
                {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
                {"action": "FailJob", "onExitCodes": given_up},
            ]
        },
        "template": {
            "metadata": {"labels": {"app.kubernetes.io/component": "updater"}},
            "spec": {"restartPolicy": "Never", "containers": [container]},
        },
    }
    return {
        "metadata": {"name": TEMPLATE},
        "spec": {
            "schedule": "0 0 1 1 *",
            "suspend": True,
            "jobTemplate": {"metadata": {"labels": {"app": "forgewatch"}}, "spec": job | spec},
        },
    }


@pytest.fixture
def namespace(server, tmp_path, monkeypatch):
    """A namespace of the test's own; this process is as in a pod there, but may nothing yet."""
    name = f"test-{secrets.token_hex(4)}"
    server.post("/api/v1/namespaces", {"metadata": {"name": name}})
    accounts = f"/api/v1/namespaces/{name}/serviceaccounts"
    server.post(accounts, {"metadata": {"name": "updater"}})
    token = server.post(f"{accounts}/updater/token", {"spec": {"expirationSeconds": 3600}})["status"]["token"]
    folder = tmp_path / "serviceaccount"
    folder.mkdir()
    (folder / "token").write_text(token)
    (folder / "namespace").write_text(name)
    (folder / "ca.crt").write_bytes(server.authority.read_bytes())
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.port))
    return Namespace(name, server, folder)


@pytest.fixture
def table(tmp_path):
    from memory.database import open_engine
    from updater.runs import RunTable

    engine = open_engine(f"sqlite:///{tmp_path / 'runs.sqlite'}")
    yield RunTable(engine, lease_s=60, max_takeovers=2)
    engine.dispose()

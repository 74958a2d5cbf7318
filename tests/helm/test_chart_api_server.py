"""A real API server takes what the chart makes, and lets its pods into a namespace that enforces restricted.

etcd and kube-apiserver are those that `make chart-e2e` builds; there is no node, and nothing is created.
"""

import json
import os
import secrets
import subprocess
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from deploy.local.processes import free_port, start, stop, wait_until

pytestmark = pytest.mark.slow

CORE_APIS = ()  # none of those that come with an operator
Create = Callable[[Sequence[Any]], str]


@pytest.fixture(scope="module")
def create(tool: Callable[[str], str | None], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Create]:
    """Give what the API server says of objects that it is asked to create, without doing so."""
    programs = [tool(name) for name in ("etcd", "kube-apiserver", "kubectl")]
    if not all(programs):
        pytest.skip("etcd, kube-apiserver or kubectl is not there; `make chart-e2e` builds them")
    etcd, server, kubectl = map(str, programs)
    folder, token = tmp_path_factory.mktemp("api"), secrets.token_hex(16)
    store, peer, port = (free_port() for _ in range(3))
    (folder / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')
    key = ["openssl", "genrsa", "-out", folder / "accounts.key", "2048"]
    subprocess.run(key, check=True, capture_output=True)
    etcd_url, peer_url = f"http://127.0.0.1:{store}", f"http://127.0.0.1:{peer}"
    listens = {
        "--listen-client-urls": etcd_url,
        "--advertise-client-urls": etcd_url,
        "--listen-peer-urls": peer_url,
        "--initial-advertise-peer-urls": peer_url,
        "--initial-cluster": f"default={peer_url}",
        "--data-dir": "etcd",
    }
    serves = {
        "--etcd-servers": etcd_url,
        "--bind-address": "127.0.0.1",
        "--secure-port": str(port),
        "--cert-dir": "certificates",
        "--service-account-key-file": "accounts.key",
        "--service-account-signing-key-file": "accounts.key",
        "--service-account-issuer": "https://kubernetes.default.svc",
        "--token-auth-file": "tokens.csv",
        "--authorization-mode": "RBAC",
        # No controller makes a namespace's account, which this would wait for.
        "--disable-admission-plugins": "ServiceAccount",
    }

    def begin(name: str, program: str, options: dict[str, str]) -> Any:
        command = [program, *(f"{option}={value}" for option, value in options.items())]
        environment = {"PATH": os.environ["PATH"]}
        return start(name, command, log=folder / f"{name}.log", environment=environment, folder=folder)

    reach = [kubectl, f"--server=https://127.0.0.1:{port}", f"--token={token}", "--insecure-skip-tls-verify"]

    def ask(*arguments: str, stdin: str = "") -> str:
        done = subprocess.run(
            [*reach, *arguments], input=stdin, capture_output=True, text=True, check=False, cwd=folder
        )
        return done.stdout + done.stderr

    running = [begin("etcd", etcd, listens)]
    try:
        running.append(begin("kube-apiserver", server, serves))
        wait_until(running[-1], lambda: ask("get", "--raw", "/readyz") == "ok", 120)
        level = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
        ask("create", "-f", "-", stdin=json.dumps(namespace("media", level)))
        yield lambda objects: ask("create", "--dry-run=server", "-f", "-", stdin=json.dumps(listed(objects)))
    finally:
        for each in reversed(running):
            stop(each)


def listed(objects: Sequence[Any]) -> Any:
    return {"apiVersion": "v1", "kind": "List", "items": objects}


def namespace(name: str, labels: dict[str, str]) -> Any:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def pod(name: str, spec: Any) -> Any:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "media"},
        "spec": spec,
    }


def test_an_api_server_takes_every_object_of_each_scenario_without_a_warning(
    create: Create, render: Any, scenario: str
) -> None:
    objects = render(scenario, apis=CORE_APIS).objects
    said = create(objects).splitlines()
    assert [line for line in said if not line.endswith(" created (server dry run)")] == []
    assert len(said) == len(objects)


def test_every_pod_is_let_into_a_namespace_that_enforces_restricted(
    create: Create, render: Any, scenario: str
) -> None:
    pods = []
    for component, template in render(scenario, apis=CORE_APIS).pods().items():
        spec = {**template["spec"]}
        # What a StatefulSet would add: a volume of its claim. And classes, which belong to a cluster.
        spec["volumes"] = [*spec["volumes"], *([{"name": "index", "emptyDir": {}}] * (component == "memory"))]
        pods.append(pod(component, {k: v for k, v in spec.items() if not k.endswith("ClassName")}))
    said = create(pods).splitlines()
    assert [line for line in said if not line.endswith(" created (server dry run)")] == []
    assert len(said) == len(pods)


def test_that_namespace_refuses_a_pod_that_asks_for_nothing(create: Create) -> None:
    said = create([pod("plain", {"containers": [{"name": "c", "image": "i"}]})])
    assert 'violates PodSecurity "restricted' in said

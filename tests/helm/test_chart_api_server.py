"""A real API server takes what the chart makes; and the chart asks it before it changes anything."""

import json
import os
import re
import secrets
import shlex
import shutil
import subprocess
from dataclasses import dataclass

import pytest

from deploy.local.processes import free_port, start, stop, wait_until

pytestmark = pytest.mark.slow

CORE_APIS = ()  # none of those that come with an operator


@dataclass(frozen=True)
class Server:
    url: str
    token: str
    kubectl: str

    def ask(self, *arguments, stdin=""):
        """What kubectl says."""
        reach = [f"--server={self.url}", f"--token={self.token}", "--insecure-skip-tls-verify"]
        return _run([self.kubectl, *reach, *arguments], stdin)

    def helm(self, program, *arguments, values=None):
        """What a helm says, which begins with `Error` where it refuses."""
        reach = [
            f"--kube-apiserver={self.url}",
            f"--kube-token={self.token}",
            "--kube-insecure-skip-tls-verify",
        ]
        given = ["-f", "-"] if values is not None else []
        return _run([program, *arguments, *reach, *given], json.dumps(values))

    def create(self, objects, *options):
        return self.ask("create", *options, "-f", "-", stdin=json.dumps(listed(objects)))


def _run(command, stdin):
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False)
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def create(server):
    """Give what the API server says of objects that it is asked to create, without doing so."""
    return lambda objects: server.create(objects, "--dry-run=server")


@pytest.fixture(scope="module")
def server(tool, tmp_path_factory):
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

    def begin(name, program, options):
        command = [program, *(f"{option}={value}" for option, value in options.items())]
        environment = {"PATH": os.environ["PATH"]}
        return start(name, command, log=folder / f"{name}.log", environment=environment, folder=folder)

    found = Server(f"https://127.0.0.1:{port}", token, kubectl)
    running = [begin("etcd", etcd, listens)]
    try:
        running.append(begin("kube-apiserver", server, serves))
        wait_until(running[-1], lambda: found.ask("get", "--raw", "/readyz") == "ok", 120)
        level = {f"pod-security.kubernetes.io/{mode}": "restricted" for mode in ("enforce", "warn")}
        found.create([an_object("Namespace", "media", labels=level)])
        yield found
    finally:
        for each in reversed(running):
            stop(each)


def listed(objects):
    return {"apiVersion": "v1", "kind": "List", "items": objects}


def an_object(kind, name, **rest):
    place = {} if kind == "Namespace" else {"namespace": "media"}
    about = {"name": name, "labels": rest.pop("labels", {}), **place}
    return {"apiVersion": "v1", "kind": kind, "metadata": about, **rest}


def test_an_api_server_takes_every_object_of_each_scenario_without_a_warning(create, render, scenario):
    objects = render(scenario, apis=CORE_APIS).objects
    said = create(objects).splitlines()
    assert [line for line in said if not line.endswith(" created (server dry run)")] == []
    assert len(said) == len(objects)


def test_every_pod_is_let_into_a_namespace_that_enforces_restricted(create, render, scenario):
    pods = []
    for component, template in render(scenario, apis=CORE_APIS).pods().items():
        spec = {**template["spec"]}
        # What a StatefulSet would add: a volume of its claim. And classes, which belong to a cluster.
        spec["volumes"] = [*spec["volumes"], *([{"name": "index", "emptyDir": {}}] * (component == "memory"))]
        spec = {k: v for k, v in spec.items() if not k.endswith("ClassName")}
        pods.append(an_object("Pod", component, spec=spec))
    said = create(pods).splitlines()
    assert [line for line in said if not line.endswith(" created (server dry run)")] == []
    assert len(said) == len(pods)


def test_that_namespace_refuses_a_pod_that_asks_for_nothing(create):
    said = create([an_object("Pod", "plain", spec={"containers": [{"name": "c", "image": "i"}]})])
    assert 'violates PodSecurity "restricted' in said


def secret(name, *keys):
    return an_object("Secret", name, stringData=dict.fromkeys(keys, "x"))


def claim(name, size, **labels):
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    return an_object("PersistentVolumeClaim", name, labels=labels, spec=spec)


MEMORY = {"app.kubernetes.io/instance": "watch", "app.kubernetes.io/component": "memory"}
NEEDED = (
    secret("forgewatch-database", "memory", "updater", "deploy"),
    secret("forgewatch-token", "token", "detector", "updater"),
    secret("forgewatch-signing", "tls.key", "tls.crt"),
)
KEPT = "--reset-then-reuse-values"
UNPROTECTED = '{"metadata": {"finalizers": null}}'
"""What a controller does with a claim that no pod has; there is none here."""


@pytest.fixture
def release(server, each_helm, chart):
    """Give helm's verb with a release of the chart in a namespace that has the Secrets, and remove it all."""
    server.create(NEEDED)

    def act(verb, *options, values=None, path=chart.path):
        if verb in ("rollback", "history"):
            return server.helm(each_helm, "-n", "media", verb, "watch", *options)
        file = ["-f", str(chart.values("minimal"))] if verb == "install" else []
        # No controller runs the hook's Job, so helm would wait for it.
        own = {"setup": {"enabled": False}} | (values or {})
        return server.helm(each_helm, "-n", "media", verb, "watch", str(path), *file, *options, values=own)

    yield act
    server.helm(each_helm, "-n", "media", "uninstall", "watch")
    server.ask("-n", "media", "delete", "secrets,pvc,statefulset", "--all", "--wait=false")
    for name in server.ask("-n", "media", "get", "pvc", "-o", "name").split():
        server.ask("-n", "media", "patch", name, "-p", UNPROTECTED)


def follow(server, said):
    """Do what a refusal says."""
    for line in re.findall(r"^ +kubectl (.*)$", said, re.MULTILINE):
        answer = server.ask(*shlex.split(line), "--wait=false")
        assert "deleted" in answer, answer
        for name in re.findall(r'persistentvolumeclaim "(\S+)" ', answer):
            server.ask("-n", "media", "patch", "pvc", name, "-p", UNPROTECTED)


@pytest.mark.parametrize(
    ("changed", "size"),
    [({"size": "3Gi"}, "3Gi"), ({"size": "1.5Gi"}, "1536Mi"), ({"storageClassName": "fast"}, "2Gi")],
)
def test_another_volume_of_the_index_is_refused_before_anything_changed_and_the_steps_that_are_named_work(
    server, release, changed, size
):
    assert "STATUS: deployed" in release("install")
    server.create([claim("index-watch-forgewatch-memory-0", "2Gi", **MEMORY)])
    changed = {"memory": {"index": changed}}
    said = release("upgrade", KEPT, values=changed)
    assert "- memory.index." in said
    assert len(json.loads(release("history", "-o", "json"))) == 1
    same = {"memory": {"index": {"size": "2048Mi"}}}
    assert "STATUS: deployed" in release("upgrade", KEPT, values=same)
    follow(server, said)
    assert "STATUS: deployed" in release("upgrade", KEPT, values=changed)
    made = json.loads(server.ask("-n", "media", "get", "sts", "watch-forgewatch-memory", "-o", "json"))
    (template,) = made["spec"]["volumeClaimTemplates"]
    assert template["spec"]["resources"]["requests"]["storage"] == size
    assert "Error" in release("rollback", "1")  # Kubernetes refuses, and no chart is asked before
    follow(server, said)
    assert "Rollback was a success" in release("rollback", "1")


def test_a_volume_that_an_install_from_before_left_is_not_taken_for_another(server, release):
    left = [claim("index-watch-forgewatch-memory-0", "1Gi", **MEMORY), claim("watch-forgewatch-run", "5Gi")]
    server.create(left)
    said = release("install")
    assert "memory.index.size is 2Gi, but 1Gi is" in said
    assert "updater.run.checkpoints.size is 20Gi, but 5Gi is" in said
    follow(server, said)
    assert "STATUS: deployed" in release("install")


SASL = {"securityProtocol": "SASL_PLAINTEXT", "saslMechanism": "PLAIN", "saslSecret": "login"}


@pytest.mark.parametrize(
    ("there", "asked", "named"),
    [
        (NEEDED[1:], {}, "database.secret is forgewatch-database, but the namespace media has no such"),
        (
            (*NEEDED[:1], secret("forgewatch-token", "token", "updater"), NEEDED[2]),
            {},
            "deployToken.secret is forgewatch-token, but this Secret has no key detector",
        ),
        (NEEDED, {"image": {"pullSecrets": ["pull"]}}, "image.pullSecrets[0] is pull, but the namespace"),
        (NEEDED, {"objectStore": {"secret": "keys", "caKey": "ca"}}, "objectStore.secret is keys, but"),
        (NEEDED, {"kafka": {"securityProtocol": "SSL", "tlsSecret": "ca"}}, "kafka.tlsSecret is ca, but"),
        ((*NEEDED, secret("login", "username")), {"kafka": SASL}, "but this Secret has no key password"),
        (NEEDED, {"claimCheck": {"existingClaim": "media"}}, "claimCheck.existingClaim is media, but"),
    ],
)
def test_what_the_values_name_and_the_namespace_lacks_is_named_first(server, release, there, asked, named):
    server.ask("-n", "media", "delete", "secrets", "--all")
    server.create(there)
    refused = release("install", values=asked)
    (line,) = [line for line in refused.splitlines() if line.startswith("- ")]
    assert named in line
    assert "No resources found" in server.ask("-n", "media", "get", "statefulsets,deployments")


def test_values_of_an_older_release_are_completed_by_the_flag_that_the_notes_name(release, chart, tmp_path):
    older = shutil.copytree(chart.path, tmp_path / "forgewatch")
    values = (older / "values.yaml").read_text()
    (older / "values.yaml").write_text(values.replace("enabled: true\n", "", 1))
    schema = json.loads((older / "values.schema.json").read_text())
    schema["required"].remove("enabled")
    (older / "values.schema.json").write_text(json.dumps(schema))
    installed = release("install", path=older)
    assert "STATUS: deployed" in installed
    assert "enabled" in release("upgrade", "--reuse-values")
    upgraded = release("upgrade", KEPT)
    assert "STATUS: deployed" in upgraded
    for text, first in (("forgewatch import", True), ("rollback watch REVISION", False), ("status\n", None)):
        assert (text in installed, text in upgraded) == (first is not False, first is not True)

"""What no API server does on purpose: answers with errors, with junk, late, or not at all."""

import json
import ssl
import subprocess
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from ingest.process.frame import WrongSettingError
from updater import kubernetes
from updater.jobs import Jobs, carrying_as_jobs
from updater.kubernetes import Kubernetes, KubernetesError

TOKENS = ("first", "renewed")


class Handler(BaseHTTPRequestHandler):
    """Answers all with what the test has put into the server."""

    def do_GET(self):
        self.server.seen.append(self.headers["Authorization"])
        if self.server.silent.is_set():
            self.server.answered.wait(30)
        body = self.server.body.encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *_args):
        """Say nothing."""


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("certificate")
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", *subject]
    subprocess.run([*command, "-keyout", "key", "-out", "crt"], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture
def faulty(certificate, tmp_path, monkeypatch):
    """An API server that does what it is told; this process has an account there."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.status, server.body, server.seen = 200, '{"items": []}', []
    server.silent, server.answered = threading.Event(), threading.Event()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate / "crt", certificate / "key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", str(server.server_port))
    server.folder = tmp_path
    (tmp_path / "ca.crt").write_bytes((certificate / "crt").read_bytes())
    (tmp_path / "token").write_text(TOKENS[0])
    (tmp_path / "namespace").write_text("here")
    yield server
    server.answered.set()
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def client(faulty):
    with Kubernetes(faulty.folder) as opened:
        yield opened


def status(message):
    return json.dumps({"kind": "Status", "message": message})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "body", "said"),
    [
        (401, status("Unauthorized"), "does not take the service account's token"),
        (403, status('User "x" cannot list resource "jobs"'), "a Role in its namespace"),
        (403, status("exceeded quota: none"), "answered 403 to GET .*: exceeded quota: none"),
        (429, status("too many requests"), "answered 429 .*: too many requests"),
        (500, status("etcdserver: leader changed"), "answered 500 .*: etcdserver: leader changed"),
        (503, "", "answered 503"),
        (200, "<html>a proxy's page</html>", "answered 200 .*a proxy's page"),
        (200, "[]", "answered 200"),
    ],
)
def test_every_answer_but_the_right_one_is_an_error_of_one_line(faulty, client, code, body, said):
    faulty.status, faulty.body = code, body
    with pytest.raises(KubernetesError, match=said) as caught:
        client.jobs({"a": "b"})
    assert "\n" not in str(caught.value)


def test_a_job_that_is_there_already_is_no_error(faulty, client):
    faulty.status, faulty.body = 409, status('jobs.batch "x" already exists')
    assert client.create_job({}) is False
    faulty.status, faulty.body = 201, "{}"
    assert client.create_job({}) is True


def test_a_token_that_was_renewed_is_used(faulty, client):
    client.jobs({})
    (faulty.folder / "token").write_text(TOKENS[1])
    client.jobs({})
    assert faulty.seen == [f"Bearer {token}" for token in TOKENS]


def test_silence_ends_in_an_error(faulty, monkeypatch):
    monkeypatch.setattr(kubernetes, "TIMEOUT_S", 0.3)
    faulty.silent.set()
    with Kubernetes(faulty.folder) as client, pytest.raises(KubernetesError, match="does not answer"):
        client.jobs({})


def test_a_server_that_is_gone_or_another_is_an_error(faulty, certificate, monkeypatch, tmp_path_factory):
    other = tmp_path_factory.mktemp("other")
    for name in ("token", "namespace"):
        (other / name).write_text("x")
    command = "openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=other -keyout key -out ca.crt"
    subprocess.run(command.split(), cwd=other, check=True, capture_output=True)
    with Kubernetes(other) as client, pytest.raises(KubernetesError, match="CERTIFICATE_VERIFY_FAILED"):
        client.jobs({})
    assert faulty.seen == [], "no token for a server that does not prove who it is"
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    with Kubernetes(faulty.folder) as client, pytest.raises(KubernetesError, match="does not answer"):
        client.jobs({})


def test_a_run_stays_queued_while_the_api_fails_and_one_line_says_so(faulty, client, table):
    run, _ = table.request("manual/1", "manual", "ann")
    faulty.status, faulty.body = 500, status("leader changed")
    jobs = Jobs(table, client, "forgewatch-update")
    assert "leader changed" in jobs.carry()
    faulty.silent.set()
    faulty.answered.set()
    assert jobs.carry() is not None
    assert (table.get(run.id).state, table.get(run.id).token) == ("queued", 0)


def test_outside_of_a_pod_the_setting_is_wrong(tmp_path, table, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(WrongSettingError, match="KUBERNETES_SERVICE_HOST is not set"):
        carrying_as_jobs(table, "forgewatch-update").__enter__()
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "1")
    monkeypatch.setattr(kubernetes, "SERVICE_ACCOUNT", tmp_path / "absent")
    with pytest.raises(WrongSettingError, match="automountServiceAccountToken"):
        carrying_as_jobs(table, "forgewatch-update").__enter__()

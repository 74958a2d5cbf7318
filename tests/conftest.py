"""What tests of several rooms share."""

import os
import shutil
import subprocess
import tempfile
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from sqlalchemy import create_engine, make_url, text

from deploy.local.processes import free_port, port_is_free


@pytest.fixture(scope="session", autouse=True)
def plan_now():
    """Releases go live at once, but in tests of rollouts, which say their own plan."""
    os.environ["FORGEWATCH_DEPLOY_PLAN"] = "now"


@dataclass(frozen=True)
class PostgreSQL:
    """A server of these tests alone: its URL without a database, and what kills it and starts it again."""

    url: str
    restart: Callable[[], None]


@pytest.fixture(scope="session")
def postgresql():
    """A server that runs; it refuses to run as root, so `nobody` does."""
    pytest.importorskip("psycopg")
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    initdb = installed[-1] if installed else shutil.which("initdb")
    if initdb is None:
        pytest.skip("PostgreSQL is not installed")
    user = "nobody" if os.geteuid() == 0 else None
    folder = Path(tempfile.mkdtemp(prefix="forgewatch-postgres-", dir="/tmp"))
    if user:
        shutil.chown(folder, user)
    port = free_port()

    def run(program, *arguments):
        command = [Path(initdb).parent / program, "-D", folder / "data", *arguments]
        subprocess.run(command, check=True, user=user, cwd=folder, stdout=subprocess.DEVNULL)

    run("initdb", "--username=forgewatch", "--auth=trust", "--no-sync")
    options = f"-p {port} -h 127.0.0.1 -k {folder} -F"
    run("pg_ctl", "-w", "-l", str(folder / "log"), "-o", options, "start")
    yield PostgreSQL(
        f"postgresql://forgewatch@127.0.0.1:{port}",
        lambda: run("pg_ctl", "-w", "-m", "immediate", "-l", str(folder / "log"), "restart"),
    )
    run("pg_ctl", "-w", "-m", "immediate", "stop")
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def postgresql_server(postgresql):
    """The URL of that server, without a database."""
    return postgresql.url


@pytest.fixture
def postgresql_url(postgresql_server):
    """An empty schema of this test alone, as its URL: a hundred times quicker made than a database."""
    name = f"t{uuid.uuid4().hex}"
    engine = create_engine(f"{postgresql_server}/postgres")
    with engine.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {name}"))
    engine.dispose()
    return f"{postgresql_server}/postgres?options=-csearch_path%3D{name}"


@pytest.fixture(scope="session")
def pooler(postgresql):
    """PgBouncer before that server, in transaction mode, with two connections to it for all clients."""
    program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    if program is None:
        pytest.skip("PgBouncer is not installed")
    user = "nobody" if os.geteuid() == 0 else None
    server, port = make_url(postgresql.url), free_port()
    folder = Path(tempfile.mkdtemp(prefix="forgewatch-pooler-", dir="/tmp"))
    (folder / "users").write_text('"forgewatch" ""\n')
    (folder / "ini").write_text(
        f"[databases]\n* = host=127.0.0.1 port={server.port}\n[pgbouncer]\nlisten_addr = 127.0.0.1\n"
        f"listen_port = {port}\nunix_socket_dir =\nauth_type = trust\nauth_file = {folder}/users\n"
        "pool_mode = transaction\ndefault_pool_size = 2\n"
    )
    for path in (folder, *folder.iterdir()):
        shutil.chown(path, user or os.geteuid())
    with subprocess.Popen([program, "-q", folder / "ini"], user=user, cwd=folder) as process:
        while process.poll() is None and port_is_free(port):
            time.sleep(0.02)
        yield f"postgresql://forgewatch@127.0.0.1:{port}/postgres"
        process.terminate()
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def sqlite_url(tmp_path):
    """An SQLite file that is not there yet."""
    return f"sqlite:///{tmp_path}/rows.sqlite"


@pytest.fixture(params=["sqlite_url", "postgresql_url"])
def either_database(request):
    """An empty database: a test that uses it runs once on SQLite and once on PostgreSQL."""
    url = request.getfixturevalue(request.param)
    return url


pytest_plugins = [
    "on_trial",
    "taken_back",
    "answers",
    "artifacts",
    "bars",
    "black_hole",
    "failing_postgresql",
    "forked",
    "published",
    "s3_server",
    "sharing",
    "signers",
    "update_processes",
]


class Collector:
    """A receiver of OTLP over HTTP, which decodes what is posted to /v1/traces."""

    def __init__(self):
        self.received = []
        received = self.received

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["content-length"]))
                found = self.path == "/v1/traces"
                if found:
                    received.append(body)
                self.send_response(200 if found else 404)
                self.send_header("content-length", "0")
                self.end_headers()

            def log_message(self, format, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def spans(self):
        """Every span that came; ids in hexadecimal, the parent's empty where there is none."""
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        return [
            SimpleNamespace(
                service=_attributes(resource.resource)["service.name"],
                trace=span.trace_id.hex(),
                id=span.span_id.hex(),
                parent=span.parent_span_id.hex(),
                state=span.trace_state,
                began_ns=span.start_time_unix_nano,
                ended_ns=span.end_time_unix_nano,
                failed=span.status.code == span.status.STATUS_CODE_ERROR,
                attributes=_attributes(span),
            )
            for body in self.received
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


def _attributes(of):
    return {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in of.attributes}


@pytest.fixture
def collector():
    opened = Collector()
    thread = threading.Thread(target=opened.server.serve_forever)
    thread.start()
    yield opened
    opened.server.shutdown()
    opened.server.server_close()
    thread.join()

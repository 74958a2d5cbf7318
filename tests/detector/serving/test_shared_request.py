"""A request in a shared file: read by whom it is for, gone afterwards, and nothing else is ever read."""

import os
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import httpx
import numpy as np
import pytest

from detector.release.contract import request_for
from detector.release.tensors import REQUEST_TYPE, decode, encode
from detector.serving.session import open_session
from detector.serving.shared_request import (
    LEAST_BYTES,
    SHARED_TYPE,
    SharedRequestError,
    SharedRequests,
    read_shared,
    shared_folder,
)
from detector.serving.torchserve import RELEASE_HEADER, TorchServe, TorchServeUnavailableError
from detector.settings import DetectorSettings
from ingest.records import Decoded

DATA = os.urandom(LEAST_BYTES)


@pytest.fixture
def folder(tmp_path):
    with SharedRequests(tmp_path / "requests").put(DATA) as body:
        assert body is not None
    return tmp_path / "requests"


def test_what_is_put_is_read_and_then_gone(folder):
    with SharedRequests(folder).put(DATA) as body:
        assert body is not None
        assert read_shared(body, folder) == DATA
        assert (folder.stat().st_mode & 0o777, next(folder.iterdir()).stat().st_mode & 0o777) == (
            0o700,
            0o600,
        )
    assert not list(folder.iterdir())
    with pytest.raises(SharedRequestError):
        read_shared(body, folder)


def test_it_is_gone_after_an_error_too(folder):
    with pytest.raises(ZeroDivisionError), SharedRequests(folder).put(DATA):
        raise ZeroDivisionError
    assert not list(folder.iterdir())


def test_what_is_small_or_has_no_folder_or_no_room_goes_as_a_body(folder, tmp_path):
    with SharedRequests(folder).put(DATA[:-1]) as body:
        assert body is None
    with SharedRequests(None).put(DATA) as body:
        assert body is None
    with SharedRequests(tmp_path / "not" / "there").put(DATA) as body:
        assert body is None
    url = DetectorSettings(torchserve_management_url="http://127.0.0.1:8081")
    assert shared_folder(url) is None
    assert shared_folder(DetectorSettings(torchserve_management_url="unix:/x/m.sock")) == Path("/x/requests")


def _replaced(made, by):
    made.unlink()
    by(made)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda made: made.chmod(0o644),
        lambda made: made.write_bytes(DATA + b"x"),
        lambda made: made.write_bytes(DATA[:-1]),
        lambda made: made.unlink(),
        lambda made: os.link(made, made.with_name("second")),
        lambda made: _replaced(made, lambda at: at.symlink_to("/etc/hostname")),
        lambda made: _replaced(made, os.mkfifo),
        lambda made: _replaced(made, lambda at: at.mkdir(mode=0o700)),
        lambda made: made.parent.chmod(0o755),
    ],
)
def test_what_is_not_as_it_was_put_is_refused(folder, spoil):
    made = folder / f"{'a' * 32}.safetensors"
    made.touch(mode=0o600)
    made.write_bytes(DATA)
    body = f"{made.name} {len(DATA)}".encode()
    assert read_shared(body, folder) == DATA
    spoil(made)
    with pytest.raises(SharedRequestError):
        read_shared(body, folder)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"../../etc/passwd 10",
        b"/etc/passwd 10",
        b"a.safetensors 10",
        b"%s.safetensors -1" % (b"a" * 32),
        b"%s.safetensors 10\n" % (b"a" * 32),
        b"%s.safetensors" % (b"a" * 32),
        b"../%s.safetensors 10" % (b"a" * 32),
    ],
)
def test_another_name_is_never_opened(folder, body):
    with pytest.raises(SharedRequestError, match="no name"):
        read_shared(body, folder)


def test_what_a_killed_worker_left_is_taken_out_and_what_a_living_one_holds_is_not(folder):
    program = (
        "import sys; from pathlib import Path; from detector.serving.shared_request import *\n"
        "with SharedRequests(Path(sys.argv[1])).put(bytes(LEAST_BYTES)): print(1, flush=True); input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as worker:
        assert worker.stdout
        worker.stdout.readline()
        (left,) = folder.iterdir()
        os.utime(left, (old := time.time() - 3600, old))
        SharedRequests(folder)
        assert left.exists()
        worker.kill()
        worker.wait()
        assert left.exists()
        SharedRequests(folder)
        assert not left.exists()


@pytest.mark.slow
@pytest.mark.parametrize("shared", [True, False])
def test_torchserve_answers_a_shared_request_as_one_in_a_body_and_one_refused_goes_as_a_body(
    untrained_artifact, tmp_path, shared, monkeypatch
):
    session, kinds = open_session(untrained_artifact, threads=1), []
    named = {RELEASE_HEADER: untrained_artifact.digest}

    def answer(request):
        kinds.append(request.headers["content-type"])
        data = request.content
        if kinds[-1] == SHARED_TYPE:
            if not shared:
                return httpx.Response(424, json={"reason": "not_shared"}, headers=named)
            data = read_shared(data, tmp_path / "requests")
        return httpx.Response(200, content=encode(session.score(decode(data))), headers=named)

    settings = DetectorSettings(torchserve_management_url=f"unix:{tmp_path}/management.sock")
    pixels = np.random.default_rng(1).integers(0, 256, (24, 64, 64, 3), dtype=np.uint8)
    request = request_for(
        [Decoded("image", "PNG", 64, 64, 1, pixels, ())], untrained_artifact.manifest.contract
    )
    with TorchServe(settings) as client:
        client._inference = httpx.Client(base_url="http://x", transport=httpx.MockTransport(answer))
        outputs = [client.predict(untrained_artifact, request) for _ in range(2)]
    assert kinds == [SHARED_TYPE] * 2 if shared else [SHARED_TYPE, REQUEST_TYPE, REQUEST_TYPE]
    for output in outputs:
        np.testing.assert_array_equal(output["logits"], session.score(request)["logits"])
    assert not list((tmp_path / "requests").iterdir())


@contextmanager
def answering(status, body, headers):
    """A server that gives the same answer to everything; yields its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815

        def log_message(self, format, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "body", "headers"),
    [
        (200, b"ok", {}),
        (200, b"{}", {"content-type": "application/json"}),
        (200, b"[]", {RELEASE_HEADER: "0" * 64}),
        (204, b"", {}),
        (302, b"", {"location": "/login"}),
        (400, b"no", {}),
        (400, b"no", {RELEASE_HEADER: "0" * 64}),
        (401, b"", {}),
        (404, b"", {}),
        (413, b"too much", {}),
        (415, b"", {}),
        (500, b"<html>", {}),
    ],
)
def test_another_server_on_torchserves_port_refuses_nothing(untrained_artifact, status, body, headers):
    request = {"crops": np.zeros((1, 64, 64, 3), np.uint8), "pooling": np.ones((1, 1), np.float32)}
    with answering(status, body, headers) as url:
        settings = DetectorSettings(torchserve_url=url, torchserve_management_url=url)
        with TorchServe(settings) as client:
            for ask in (client.predict, lambda artifact, _: client.probe(artifact)):
                with pytest.raises(TorchServeUnavailableError):
                    ask(untrained_artifact, request)


def test_a_management_address_that_lists_no_models_is_another_servers():
    with answering(200, b"ok", {}) as url:
        settings = DetectorSettings(torchserve_url=url, torchserve_management_url=url)
        with TorchServe(settings) as client, pytest.raises(TorchServeUnavailableError, match="lists"):
            client.versions()

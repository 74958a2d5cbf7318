"""An answer that is not the release's handler's is an ill server, which is waited for."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from detector.serving.torchserve import RELEASE_HEADER, TorchServe, TorchServeUnavailableError
from detector.settings import DetectorSettings


@contextmanager
def answering(status: int, body: bytes, headers: dict[str, str]) -> Iterator[str]:
    """A server that gives the same answer to everything; yields its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(status)
            for name, value in {**headers, "content-length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815

        def log_message(self, format: str, *args: object) -> None:
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

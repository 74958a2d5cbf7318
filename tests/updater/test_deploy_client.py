"""The updater's token goes to deploy and to nobody else."""

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from pydantic import SecretStr

from deploy.client.http import Client
from deploy.settings import DeploySettings
from updater.deploy_client import DeployClient, DeployUnavailableError
from updater.records import NOT_LET_IN
from updater.settings import UpdaterSettings

_PROXIES = ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Listens where every proxy variable points to."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.setblocking(False)
        for name in _PROXIES:
            monkeypatch.setenv(name, f"http://127.0.0.1:{listening.getsockname()[1]}")
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        yield listening


@pytest.fixture
def deploy(proxy: socket.socket) -> Iterator[tuple[str, list[str | None]]]:
    """Answers that nothing is live; gives its address and the tokens that it was sent."""
    tokens: list[str | None] = []

    class Nothing(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            tokens.append(self.headers["Authorization"])
            self.send_response(200)
            self.send_header("Content-Length", "4")
            self.end_headers()
            self.wfile.write(b"null")

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Nothing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}", tokens
        server.shutdown()
        thread.join()


def test_updater_and_command_line_pass_by_a_proxy_that_the_environment_names(
    proxy: socket.socket, deploy: tuple[str, list[str | None]]
) -> None:
    url, tokens = deploy
    with DeployClient(UpdaterSettings(deploy_url=url, deploy_token=SecretStr("s3cret"))) as client:
        assert client.live_digest() is None
    with Client(DeploySettings(url=url, token=SecretStr("s3cret")), "ada") as command_line:
        assert command_line.rollout() is None
    assert tokens == ["Bearer s3cret"] * 2
    with pytest.raises(BlockingIOError):
        proxy.accept()


@pytest.mark.parametrize("status", [401, 403])
def test_an_update_waits_where_deploy_refuses_its_token(
    deploy: tuple[str, list[str | None]], monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    answer = BaseHTTPRequestHandler.send_response
    monkeypatch.setattr(BaseHTTPRequestHandler, "send_response", lambda self, _: answer(self, status))
    with (
        DeployClient(UpdaterSettings(deploy_url=deploy[0])) as client,
        pytest.raises(DeployUnavailableError, match=rf"{NOT_LET_IN} \(HTTP {status}\): restart"),
    ):
        client.live_digest()

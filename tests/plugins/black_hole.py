"""A proxy before PostgreSQL that stops forwarding."""

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest
from sqlalchemy import make_url


class Proxy:
    """Passes bytes between clients and a server, until it is a black hole: then it only reads them."""

    def __init__(self, host: str, port: int) -> None:
        self._server = (host, port)
        self.swallows = threading.Event()
        self.swallowed = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = [self._listener]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(self._server)
                except OSError:
                    client.close()
                    continue
                self._open += [client, server]
                for pair in ((client, server), (server, client)):
                    threading.Thread(target=self._pass_on, args=pair, daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if self.swallows.is_set():
                    self.swallowed.set()
                else:
                    target.sendall(data)
        if not self.swallows.is_set():
            with contextlib.suppress(OSError):
                target.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        for each in self._open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()


@pytest.fixture
def proxy(postgresql_url: str) -> Iterator[Proxy]:
    url = make_url(postgresql_url)
    opened = Proxy(str(url.host), int(url.port or 0))
    yield opened
    opened.close()


@pytest.fixture
def through(proxy: Proxy, postgresql_url: str) -> str:
    return make_url(postgresql_url).set(port=proxy.port).render_as_string(hide_password=False)

"""A real receiver of webhooks on loopback, and a record of the test's own."""

import ssl
import threading
from collections.abc import Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from pydantic import SecretStr

from deploy.notice_records import Webhook
from deploy.notices.notices import Notices
from deploy.notices.sender import Sender
from deploy.record.chain import Act

PATIENCE_S = 60.0
KEY = bytes(range(32))


@dataclass
class Receiver:
    """What a receiver got, in order; `answer` says, by the number of requests before, what it answers.

    A status is answered; "hang" is no answer, "drip" one whose headers never end, "drop" an end without one.
    """

    port: int = 0
    secure: Callable[[Path, Path], None] = lambda certificate, key: None
    answer: Callable[[int], int | str] = lambda _: 204
    headers: Mapping[str, str] = field(default_factory=dict)
    got: list[tuple[str, Mapping[str, str], bytes]] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)
    over: threading.Event = field(default_factory=threading.Event)

    def webhook(self, path="/take", form="cloudevents"):
        return Webhook(url=SecretStr(f"http://127.0.0.1:{self.port}{path}"), form=form)

    def until(self, true):
        with self.changed:
            assert self.changed.wait_for(true, PATIENCE_S)

    def until_got(self, count):
        self.until(lambda: len(self.got) >= count)

    @property
    def ids(self):
        return [headers["webhook-id"] for _, headers, _ in self.got]


def _handler(receiver):
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            with receiver.changed:
                answer = receiver.answer(len(receiver.got))
                receiver.got.append((self.path, headers, body))
                receiver.changed.notify_all()
            self.close_connection = True
            if isinstance(answer, int):
                self.send_response(answer)
                for name, value in receiver.headers.items():
                    self.send_header(name, value)
                self.end_headers()
            elif answer == "hang":
                receiver.over.wait(PATIENCE_S)
            elif answer == "drip":
                self._drip()

        def _drip(self):
            self.wfile.write(b"HTTP/1.1 200 OK\r\nx: ")
            while not receiver.over.wait(0.02):
                try:
                    self.wfile.write(b".")
                except OSError:
                    return

        def log_message(self, *_):
            """Say nothing."""

    return Handler


@pytest.fixture
def make_receiver():
    opened = []

    def make():
        receiver = Receiver()
        server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(receiver))
        receiver.port = server.server_port

        def secure(certificate, key):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate, key)
            server.socket = context.wrap_socket(server.socket, server_side=True)

        receiver.secure = secure
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        opened.append((receiver, server, thread))
        return receiver

    yield make
    for receiver, server, thread in opened:
        receiver.over.set()
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def receiver(make_receiver):
    return make_receiver()


@contextmanager
def _telling(record, *webhooks, try_s=10.0, authorities=None):
    senders = [
        Sender(record, number, webhook, KEY, interval_s=0.01, try_s=try_s)
        for number, webhook in enumerate(webhooks, 1)
    ]
    with Notices(record, senders, list, authorities) as notices:
        yield notices


@pytest.fixture
def telling():
    """Tells webhooks of a record while it is entered: `telling(record, *webhooks, try_s=10)`."""
    return _telling


def put_acts(record, count):
    """Put acts on record that webhooks are told of, one a transaction; return their ids."""
    for number in range(count):
        record.append(Act("ada", "approve", f"{number:012}{0:052}"), Act("ada", "label", "label 1"))
    return [entry.hash for entry in reversed(record.entries(count, action="approve"))]


@pytest.fixture
def act_in():
    return put_acts


@pytest.fixture
def act(record):
    return lambda count: put_acts(record, count)

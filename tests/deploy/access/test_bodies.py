"""What a stranger sends, or does not send, costs a real server neither memory nor its place for others."""

import socket
import sys
import threading
import tracemalloc
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection
from urllib.parse import urlsplit

import pytest
import uvicorn
from fastapi.routing import APIRoute

from deploy import process
from deploy.access.guard import GuardedRoute
from ingest.process import health

pytestmark = pytest.mark.slow

PIECE, PIECES = b"x" * 2**16, 256
LENGTH = len(PIECE) * PIECES
JSON, FORM = "application/json", "application/x-www-form-urlencoded"
MULTIPART = "multipart/form-data; boundary=b"
BEGIN = {
    JSON: b'{"reason": "',
    FORM: b"token=",
    MULTIPART: b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n',
}
ENDPOINTS = [
    ("POST", "/labels", JSON),
    ("POST", "/rollback", JSON),
    ("POST", "/imports/folder", JSON),
    ("PUT", f"/artifacts/{'0' * 64}/model_card.md", JSON),
    ("POST", "/login", FORM),
    ("POST", "/login", MULTIPART),
    ("POST", "/page/try", MULTIPART),
    ("POST", "/page/releases/" + "0" * 64, FORM),
    ("POST", "/nowhere", JSON),
]
MOST_TAKEN = 2**22


def answered(url, method, path, kind, *, declared):
    """The answer to a body of `LENGTH` bytes; declared: with a Content-Length, else in chunks."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=120)
    begin = BEGIN[kind]

    def body():
        yield begin
        for _ in range(PIECES):
            yield PIECE

    headers = {"Content-Type": kind, "Origin": url}
    if declared:
        headers["Content-Length"] = str(len(begin) + LENGTH)
    with suppress(BrokenPipeError, ConnectionResetError):  # the server has answered, and takes no more
        connection.request(method, path, body(), headers, encode_chunked=not declared)
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer


def taken(url, method, path, kind, *, declared):
    """The status, and the most bytes that were held meanwhile."""
    tracemalloc.start()
    try:
        status = answered(url, method, path, kind, declared=declared).status
        return status, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize(("method", "path", "kind"), ENDPOINTS)
def test_a_stranger_s_body_costs_no_memory(bearers, served, method, path, kind, declared):
    status, held = taken(served, method, path, kind, declared=declared)
    assert status in (401, 404, 413)
    assert held < MOST_TAKEN


@pytest.fixture
def without_defence(monkeypatch):
    monkeypatch.setattr(GuardedRoute, "get_route_handler", APIRoute.get_route_handler)
    monkeypatch.setattr("deploy.app.MAX_BODY_BYTES", sys.maxsize)


@pytest.mark.parametrize("declared", [True, False])
def test_where_the_token_is_looked_at_after_the_body_it_would(without_defence, bearers, served, declared):
    """The negative control of the test above."""
    assert taken(served, "POST", "/rollback", JSON, declared=declared)[1] > LENGTH


def test_what_is_too_large_is_one_line_that_says_how_much_fits(stranger, bearers):
    long = b'{"reason": "' + b"x" * 2**20 + b'"}'
    refused = stranger.post("/rollback", content=long, headers={"Content-Type": JSON} | bearers["approver"])
    assert refused.status_code == 413
    line = f"the body has {len(long)} bytes, and at most {2**20} are taken here: send less at once"
    assert refused.json() == {"detail": line}


def test_a_browser_is_told_in_its_page_how_much_a_form_takes(stranger, bearers):
    file = {"file": ("a.jpg", b"x" * (2**26 + 2**16))}
    refused = stranger.post("/page/try", files=file, headers=bearers["reviewer"])
    assert (refused.status_code, refused.headers["content-type"]) == (413, "text/html; charset=utf-8")
    assert "at most 67174400 are taken here" in refused.text
    assert "default-src 'none'" in refused.headers["content-security-policy"]


def test_a_login_takes_a_token_and_a_long_path_and_no_more(stranger, bearers):
    token, origin = bearers["viewer"]["Authorization"].split()[1], {"Origin": "https://127.0.0.1:8700"}
    longest = {"token": token, "next": "/" + "界" * 1999}
    assert stranger.post("/login", data=longest, headers=origin).status_code == 303
    too_long = {"token": "x" * 2**15}
    assert stranger.post("/login", data=too_long, headers=origin).status_code == 413


HALVES = {
    "no head": b"",
    "half a head": b"GET / HTTP/1.1\r\nHost: a\r\nX: ",
    "half a body": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n1234",
}
PLACES = 6


def closed(peer):
    """Whether the server closed it; waits for that at most as long as a test may."""
    peer.settimeout(60)
    with suppress(ConnectionResetError):
        return peer.recv(1) == b""
    return True


@contextmanager
def listening(protocol):
    """A real server whose application reads a body, and answers once it is told to go on."""

    async def app(scope, receive, send):
        if scope["type"] != "http":
            return
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    server = uvicorn.Server(
        uvicorn.Config(app, port=0, log_config=None, http=protocol, timeout_keep_alive=60)
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        thread.join(0.02)
    yield "http://{}:{}".format(*server.servers[0].sockets[0].getsockname())
    server.should_exit = server.force_exit = True
    thread.join()


@pytest.fixture(params=["deploy", "health"])
def places(request, monkeypatch):
    """The address of a server that has few places."""
    monkeypatch.setattr(process, "MAX_CONNECTIONS", PLACES)
    monkeypatch.setattr(health, "_WAITING_CONNECTIONS", PLACES)
    monkeypatch.setattr(health._Handler, "timeout", None)
    with ExitStack() as stack:
        if request.param == "deploy":
            yield stack.enter_context(listening(process.BoundedProtocol))
        else:
            yield stack.enter_context(health.serve_health("127.0.0.1", 0, health.Heartbeat()))


def connect(url, data):
    address = urlsplit(url)
    peer = socket.create_connection((address.hostname, address.port))
    peer.sendall(data)
    return peer


@pytest.mark.parametrize("half", ["no head", "half a head"])
def test_peers_that_ask_nothing_make_room_for_who_asks(places, half):
    with ExitStack() as stack:
        peers = [stack.enter_context(connect(places, HALVES[half])) for _ in range(3 * PLACES)]
        answer = answered(places, "GET", "/livez", JSON, declared=True)
        assert answer.status in (200, 204)
        assert all(closed(peer) for peer in peers[: 2 * PLACES])


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("bounded", [True, False])
def test_a_peer_that_does_not_go_on_is_let_go(monkeypatch, half, bounded):
    """With the control: uvicorn alone keeps it for ever, which is to say until another was let go."""
    monkeypatch.setattr(process, "_PATIENCE_S", 0.05)
    with listening(process.BoundedProtocol) as url, listening("h11") as kept, ExitStack() as stack:
        peers = [stack.enter_context(connect(each, HALVES[half])) for each in (kept, url)]
        assert closed(peers[1])
        if not bounded:
            peers[0].setblocking(False)
            with pytest.raises(BlockingIOError):
                peers[0].recv(1)
        else:
            assert answered(url, "POST", "/", JSON, declared=True).status == 204


@pytest.mark.parametrize("header", ["Host", "Origin", "X-Forwarded-User", "X-Forgewatch-Actor", "Cookie"])
@pytest.mark.parametrize(
    "value", ["[", "http://[", "http://[::1", "//\u2100", "http://a@[", "%5b%ff", "\x01"]
)
def test_a_header_that_names_nothing_is_refused_and_is_no_fault_of_the_server(stranger, header, value):
    for method, path in (
        ("GET", "/releases"),
        ("POST", "/updates"),
        ("POST", "/login"),
        ("GET", "/page/now"),
    ):
        given = {header.encode(): value.encode()}
        answer = stranger.request(
            method, path, headers=given, data={"token": "x"} if path == "/login" else None
        )
        assert answer.status_code < 500, (method, path, answer.text)

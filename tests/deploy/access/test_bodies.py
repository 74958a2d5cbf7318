"""What a stranger sends costs a real server no memory, whatever its length and however it is sent."""

import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import suppress
from http.client import HTTPConnection, HTTPResponse
from urllib.parse import urlsplit

import pytest
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from deploy.access.guard import GuardedRoute

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


def answered(url: str, method: str, path: str, kind: str, *, declared: bool) -> HTTPResponse:
    """The answer to a body of `LENGTH` bytes; declared: with a Content-Length, else in chunks."""
    connection = HTTPConnection(urlsplit(url).netloc, timeout=120)
    begin = BEGIN[kind]

    def body() -> Iterator[bytes]:
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


def taken(url: str, method: str, path: str, kind: str, *, declared: bool) -> tuple[int, int]:
    """The status, and the most bytes that were held meanwhile."""
    tracemalloc.start()
    try:
        status = answered(url, method, path, kind, declared=declared).status
        return status, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize(("method", "path", "kind"), ENDPOINTS)
def test_a_stranger_s_body_costs_no_memory(
    bearers: dict[str, dict[str, str]], served: str, method: str, path: str, kind: str, declared: bool
) -> None:
    status, held = taken(served, method, path, kind, declared=declared)
    assert status in (401, 404, 413)
    assert held < MOST_TAKEN


@pytest.fixture
def without_defence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GuardedRoute, "get_route_handler", APIRoute.get_route_handler)
    monkeypatch.setattr("deploy.app.MAX_BODY_BYTES", sys.maxsize)


@pytest.mark.parametrize("declared", [True, False])
def test_where_the_token_is_looked_at_after_the_body_it_would(
    without_defence: None, bearers: dict[str, dict[str, str]], served: str, declared: bool
) -> None:
    """The negative control of the test above."""
    assert taken(served, "POST", "/rollback", JSON, declared=declared)[1] > LENGTH


def test_what_is_too_large_is_one_line_that_says_how_much_fits(
    stranger: TestClient, bearers: dict[str, dict[str, str]]
) -> None:
    long = b'{"reason": "' + b"x" * 2**20 + b'"}'
    refused = stranger.post("/rollback", content=long, headers={"Content-Type": JSON} | bearers["approver"])
    assert refused.status_code == 413
    line = f"the body has {len(long)} bytes, and at most {2**20} are taken here: send less at once"
    assert refused.json() == {"detail": line}


def test_a_browser_is_told_in_its_page_how_much_a_form_takes(
    stranger: TestClient, bearers: dict[str, dict[str, str]]
) -> None:
    file = {"file": ("a.jpg", b"x" * (2**26 + 2**16))}
    refused = stranger.post("/page/try", files=file, headers=bearers["reviewer"])
    assert (refused.status_code, refused.headers["content-type"]) == (413, "text/html; charset=utf-8")
    assert "at most 67174400 are taken here" in refused.text
    assert "default-src 'none'" in refused.headers["content-security-policy"]


def test_a_login_takes_a_token_and_a_long_path_and_no_more(
    stranger: TestClient, bearers: dict[str, dict[str, str]]
) -> None:
    token, origin = bearers["viewer"]["Authorization"].split()[1], {"Origin": "https://127.0.0.1:8700"}
    longest = {"token": token, "next": "/" + "界" * 1999}
    assert stranger.post("/login", data=longest, headers=origin).status_code == 303
    too_long = {"token": "x" * 2**15}
    assert stranger.post("/login", data=too_long, headers=origin).status_code == 413

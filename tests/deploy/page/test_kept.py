"""A session that ends while somebody types costs no text, and does nothing by itself."""

import html
import re

import pytest

from deploy.access.roles import Person, TokenRequest
from deploy.access.sessions import COOKIE
from deploy.page.login import _MOST

OWNER = Person("root", frozenset({"admin"}), "token")


TYPED = {"do": "reject", "reason": "two words\n</textarea><script>alert(1)</script>", "form_token": "0" * 64}


@pytest.fixture
def token(services):
    """An admin's token: from now on nobody gets in without one."""
    return services.access.tokens.add(TokenRequest(name="ada", role="admin", days=1), OWNER).token


def path_after_login(text):
    """Where the login form leads."""
    found = re.search('name="next" value="([^"]*)"', text)
    assert found is not None
    return html.unescape(found[1])


def sign_in(page, token, next_):
    answer = page.post("/login", data={"token": token, "next": next_}, follow_redirects=False)
    # The test's client drops a cookie that asks for TLS on http.
    session = re.search(f"{COOKIE}=([^;]+)", answer.headers["set-cookie"])
    assert session is not None
    return page.get(answer.headers["location"], headers={"cookie": f"{COOKIE}={session[1]}"})


def test_what_was_typed_is_shown_after_the_login_and_nothing_was_done(page, services, token):
    asked = page.post("/page/updates", data=TYPED, headers={"cookie": f"{COOKIE}=gone"})
    assert asked.status_code == 401
    assert "two words" not in asked.text
    mistyped = page.post("/login", data={"token": "fw_wrong", "next": path_after_login(asked.text)})
    shown = sign_in(page, token, path_after_login(mistyped.text))
    assert shown.status_code == 200
    assert "two words\n&lt;/textarea&gt;&lt;script&gt;" in shown.text
    assert 'action="/page/updates"' in shown.text
    assert 'name="do" value="reject"' in shown.text
    assert "0" * 64 not in shown.text
    assert services.runs.newest(5) == []


def test_what_was_typed_is_shown_to_nobody_without_a_session_nor_under_another_name(page, token):
    asked = page.post("/page/updates", data=TYPED)
    place = path_after_login(asked.text)
    assert place.startswith("/page/kept/")
    assert page.get(place).status_code == 401
    assert sign_in(page, token, place + "x").status_code == 404


@pytest.mark.slow
@pytest.mark.parametrize(
    "sent",
    [
        {"data": {"reason": "x " * 40_000}},
        {"data": TYPED, "headers": {"origin": "http://evil.example"}},
        {"json": TYPED},
        {"files": {"file": b"x"}},
    ],
)
def test_what_is_large_of_another_page_or_no_form_is_not_kept(page, token, sent):
    asked = page.post("/page/updates", **sent)
    assert asked.status_code == 401
    assert path_after_login(asked.text) == "/page/updates"


def test_only_so_many_are_kept(page, token):
    places = [path_after_login(page.post("/page/updates", data=TYPED).text) for _ in range(_MOST + 1)]
    assert sign_in(page, token, places[-1]).status_code == 200
    assert sign_in(page, token, places[0]).status_code == 404

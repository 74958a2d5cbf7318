"""A browser's session: begun by a token, ended by time, by logging out and with its token."""

import json
import re
from contextlib import contextmanager

import pytest
from fastapi.testclient import TestClient
from pydantic import ValidationError
from sqlalchemy import select
from starlette.datastructures import Headers

from deploy.access.api import own_path
from deploy.access.guard import person_of_proxy
from deploy.access.sessions import COOKIE, Sessions
from deploy.app import create_app
from deploy.record.chain import record
from deploy.server.services import open_services
from deploy.settings import DeploySettings

ORIGIN = {"Origin": "https://127.0.0.1:8700"}


@pytest.fixture
def sessions(engine, tokens, clock):
    return Sessions(engine, tokens, clock)


def test_a_session_has_its_token_s_name_and_role(sessions, tokens, give):
    session = sessions.begin(give(tokens, "ada", "reviewer"))
    assert session is not None
    person = sessions.person_of(session)
    assert person is not None
    assert (person.name, person.roles, person.by) == ("ada", {"reviewer"}, "session")
    assert sessions.person_of(session + "x") is None
    assert sessions.begin("fw_forged") is None


@pytest.mark.parametrize(("minutes", "times", "last"), [(29, 3, 30), (20, 35, 20)])
def test_30_minutes_without_a_request_end_it_and_12_hours_whole(
    sessions, tokens, give, clock, minutes, times, last
):
    session = sessions.begin(give(tokens, "ada", "admin"))
    for _ in range(times):
        clock.go(minutes=minutes)
        assert sessions.person_of(session) is not None
    clock.go(minutes=last)
    assert sessions.person_of(session) is None


def test_it_ends_with_its_token(sessions, tokens, give, clock):
    session = sessions.begin(give(tokens, "ada", "admin"))
    tokens.revoke("ada", "root")
    assert sessions.person_of(session) is None


@pytest.fixture
def browser(stranger, services, give):
    """Somebody who logged in as a reviewer."""
    token = give(services.access.tokens, "ada", "reviewer")
    answer = stranger.post("/login", data={"token": token, "next": "/clusters"}, headers=ORIGIN)
    assert (answer.status_code, answer.headers["location"]) == (303, "/clusters")
    cookie = answer.headers["set-cookie"]
    assert cookie.startswith(f"{COOKIE}=")
    for part in ("HttpOnly", "Secure", "SameSite=strict", "Path=/", "Max-Age=43200"):
        assert part in cookie
    assert "domain" not in cookie.lower()
    assert token not in cookie
    return stranger


def test_the_token_is_given_once_and_the_cookie_does_the_rest(browser):
    assert browser.get("/clusters").status_code == 200
    assert browser.get("/tokens").status_code == 403


def test_logging_out_ends_it_on_the_server_and_takes_the_form_s_token(browser, services):
    kept = browser.cookies[COOKIE]
    assert browser.post("/logout", headers=ORIGIN).status_code == 403
    assert browser.get("/clusters").status_code == 200
    form = {"form_token": form_token(browser, services)}
    assert browser.post("/logout", headers=ORIGIN, data=form).status_code == 303
    browser.cookies.clear()
    browser.cookies.set(COOKIE, kept)
    ended = browser.get("/clusters")
    assert (ended.status_code, ended.json()["detail"]) == (401, "your session has ended: log in again")
    newest = services.record.entries(1)[0]
    assert (newest.actor, newest.action) == ("ada", "log out")


def test_refused_logins_are_on_record_and_cannot_fill_it(engine, sessions, tokens, give, clock):
    def refused():
        with engine.connect() as connection:
            found = connection.execute(select(record).where(record.c.action == "refuse login")).mappings()
            return [json.loads(row["details"]) for row in found]

    for number in range(1000):
        sessions.refuse(f"10.0.{number // 250}.{number % 250}")
    assert refused() == [{"logins": 1, "from": ["10.0.0.0"]}]
    clock.go(minutes=10)
    sessions.refuse("10.0.0.9")
    assert refused()[1]["logins"] == 1000
    sessions.refuse("10.0.0.7")
    assert len(refused()) == 2
    sessions.begin(give(tokens, "ada", "viewer"))  # with whom the last ones come
    assert refused()[2:] == [{"logins": 1, "from": ["10.0.0.7"]}]
    sessions.begin(give(tokens, "bea", "viewer"))
    assert len(refused()) == 3


def form_token(browser, services):
    """What the server puts into this browser's forms."""
    from starlette.requests import Request

    cookie = f"{COOKIE}={browser.cookies[COOKIE]}".encode()
    request = Request({"type": "http", "method": "GET", "headers": [(b"cookie", cookie)]})
    person = services.access.sessions.person_of(browser.cookies[COOKIE])
    assert person is not None
    request.state.person = person
    return services.access.form_token(request)


def test_a_session_changes_something_only_from_a_page_of_this_server(browser, services):
    token = form_token(browser, services)
    good = ORIGIN | {"X-Forgewatch-Form": token}
    assert browser.post("/updates", headers=good).status_code == 202
    for bad in (
        {},
        {"X-Forgewatch-Actor": "ada"},
        ORIGIN,
        {"X-Forgewatch-Form": token},
        good | {"Origin": "https://evil.example"},
        good | {"Origin": "null"},
        good | {"X-Forgewatch-Form": "0" * 64},
    ):
        assert browser.post("/updates", headers=bad).status_code == 403, bad
    assert len(services.runs.newest(10)) == 1


@pytest.mark.parametrize("encoded", [{"data": {}}, {"data": {}, "files": {"f": ("f", b"x")}}])
def test_a_form_without_script_bears_the_token_in_a_field(browser, services, encoded):
    token = form_token(browser, services)
    wrong = encoded | {"data": {"form_token": "0"}}
    assert browser.post("/updates", headers=ORIGIN, **wrong).status_code == 403
    right = encoded | {"data": {"form_token": token}}
    assert browser.post("/updates", headers=ORIGIN, **right).status_code == 202


def test_a_login_that_another_page_sends_is_refused(stranger, services, give):
    token = give(services.access.tokens, "eve", "admin")
    for headers in ({}, {"Origin": "https://evil.example"}):
        assert stranger.post("/login", data={"token": token}, headers=headers).status_code == 403
    wrong = stranger.post("/login", data={"token": "fw_wrong"}, headers=ORIGIN)
    assert (wrong.status_code, COOKIE in wrong.cookies) == (401, False)
    newest = services.record.entries(1)[0]
    assert (newest.actor, newest.action, newest.details["from"]) == ("nobody", "refuse login", ["testclient"])


@pytest.mark.parametrize(
    "path", ["https://evil.example", "//evil.example", "/\\evil.example", "/\t/evil.example", "evil", ""]
)
def test_a_login_leads_nowhere_else(path):
    assert own_path(path) == "/"
    assert own_path("/releases?a=b#c") == "/releases?a=b#c"


def test_an_open_stack_on_loopback_takes_forms_of_its_own_pages_alone(http):
    del http.headers["X-Forgewatch-Actor"]
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1"):
        assert http.post("/updates", headers={"Origin": origin}).status_code == 403
    own = {"Origin": "http://127.0.0.1:8700"}
    assert re.search("load the page again", http.post("/updates", headers=own).text)


# A proxy's word: believed from the addresses of the setting, dropped from everywhere else.
PROXY = "10.1.2.3"
ADA = {"X-Forwarded-User": "ada", "X-Forwarded-Groups": "staff,forge-approvers"}


@pytest.fixture
def behind(settings, monkeypatch):
    monkeypatch.setenv("FORGEWATCH_DEPLOY_PROXY_ADDRESSES", '["10.1.0.0/16", "fd00::/8"]')
    monkeypatch.setenv("FORGEWATCH_DEPLOY_PROXY_ROLES", '{"forge-approvers": "approver", "staff": "viewer"}')
    return DeploySettings()


@pytest.fixture
def asked(behind):

    @contextmanager
    def client(address):
        with (
            open_services(behind) as services,
            TestClient(
                create_app(behind, services), base_url="http://deploy.example", client=(address, 1234)
            ) as opened,
        ):
            yield opened

    return client


def test_it_names_the_person_and_their_groups_the_roles(asked):
    with asked(PROXY) as client:
        assert client.get("/releases", headers=ADA).status_code == 200
        assert client.get("/tokens", headers=ADA).status_code == 403
        run = client.post("/updates", headers=ADA | {"X-Forgewatch-Actor": "eve"}).json()
        assert run["requested_by"] == "ada"
        nobody = ADA | {"X-Forwarded-Groups": "others"}
        refused = client.get("/releases", headers=nobody)
        assert (refused.status_code, "no role here" in refused.text) == (403, True)


@pytest.mark.parametrize("address", ["10.2.0.1", "127.0.0.1", "::1", "testclient", "fe80::1"])
def test_from_elsewhere_it_is_dropped(asked, address):
    with asked(address) as client:
        assert client.get("/releases", headers=ADA).status_code == 401
        assert client.get("/releases", headers=ADA | {"X-Forwarded-For": PROXY}).status_code == 401


@pytest.mark.parametrize("address", [PROXY, "::ffff:10.1.2.3", "fd00::1"])
def test_an_address_counts_however_it_is_written(behind, address):
    person = person_of_proxy(behind, address, Headers(ADA))
    assert person is not None
    assert person.roles == {"approver", "viewer"}


def test_a_header_that_comes_twice_is_refused(asked):
    with asked(PROXY) as client:
        twice = [*ADA.items(), ("X-Forwarded-User", "root")]
        assert client.get("/releases", headers=twice).status_code == 400


def test_a_page_of_another_origin_sends_nothing_in_a_proxied_person_s_name(asked):
    with asked(PROXY) as client:
        assert client.post("/updates", headers=ADA).status_code == 403
        assert client.post("/updates", headers=ADA | {"Origin": "http://evil.example"}).status_code == 403


@pytest.mark.parametrize("wrong", ['["10.1.0.0/99"]', '["proxy.example"]', "10.1.0.0/16"])
def test_a_wrong_address_is_no_setting(monkeypatch, wrong):
    monkeypatch.setenv("FORGEWATCH_DEPLOY_PROXY_ADDRESSES", wrong)
    with pytest.raises((ValidationError, ValueError), match="proxy_addresses"):
        DeploySettings()

"""Tokens: shown once, kept as a hash, good until they expire or are revoked."""

import re
from contextlib import closing
from itertools import pairwise

import pytest
from fastapi import APIRouter
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from pydantic import SecretStr

from deploy.access.guard import GuardedRoute
from deploy.access.roles import ANYONE, PEOPLE, RULE, Person, TokenRequest
from deploy.access.tokens import SHARED, TokenError, Tokens, UnknownTokenError, hash_of
from deploy.app import create_app
from deploy.record.record import Record
from deploy.server.services import open_services
from deploy.settings import DeploySettings

pytestmark = pytest.mark.slow

ROOT = Person("root", frozenset({"admin"}), "token")
ANYBODY = Person("ada", frozenset({"admin"}), "loopback")


def test_a_token_names_its_holder_and_role(tokens, give):
    token = give(tokens, "ada", "approver")
    assert tokens.person_of(hash_of(token)) == Person("ada", frozenset({"approver"}), "token")
    assert tokens.person_of(hash_of(token + "x")) is None


def test_the_database_holds_no_token(tokens, give, tmp_path, engine):
    token = give(tokens, "ada", "admin")
    engine.dispose()
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("ledger.sqlite*"))
    assert hash_of(token).encode() in stored
    assert token.removeprefix("fw_").encode() not in stored


def test_a_token_ends_when_it_expires(tokens, give, clock):
    token = give(tokens, "ada", "admin", days=7)
    clock.go(days=7, seconds=-1)
    assert tokens.person_of(hash_of(token)) is not None
    clock.go(seconds=1)
    assert tokens.person_of(hash_of(token)) is None


def test_a_token_ends_when_it_is_revoked_and_its_name_may_have_another(tokens, give):
    token = give(tokens, "ada", "admin")
    assert tokens.revoke("ada", "root").revoked_by == "root"
    assert tokens.person_of(hash_of(token)) is None
    again = give(tokens, "ada", "viewer")
    assert tokens.person_of(hash_of(again)) is not None
    with pytest.raises(UnknownTokenError, match="eve has no token"):
        tokens.revoke("eve", "root")


def test_its_last_use_is_noted_to_the_minute(tokens, give, clock):
    token = give(tokens, "ada", "admin")
    assert tokens.entries()[0].used_at is None
    first = clock.now
    tokens.person_of(hash_of(token))
    clock.go(seconds=59)
    tokens.person_of(hash_of(token))
    assert tokens.entries()[0].used_at == first
    clock.go(seconds=1)
    tokens.person_of(hash_of(token))
    assert tokens.entries()[0].used_at == clock.now


@pytest.mark.parametrize(
    ("name", "says"),
    [
        *((name, "revoke it first") for name in ("ada", "ADA", " Ada ", "\uff21da", "a\u1d48a")),
        *((f"a{unseen}da", "no name") for unseen in "\u202e\u200b\u00a0\u2003\ufe0f\u3164\u2800\u034f\x00\n"),
        (" ", "no name"),
        *((name, "part of Forgewatch") for name in ("Updater", "\uff55pdater", "Shared  token")),
    ],
)
def test_a_name_that_misleads_gets_none(tokens, give, name, says):
    give(tokens, "ada", "admin")
    with pytest.raises(TokenError, match=says):
        tokens.add(TokenRequest(name=name, role="viewer"), ROOT)
    assert len(tokens.entries()) == 1


def test_the_first_person_s_token_is_an_admin_s_and_closes_the_stack(tokens):
    tokens.add(TokenRequest(name="detector-eu", role="detector"), ANYBODY)
    assert not tokens.for_people()
    with pytest.raises(TokenError, match="admin"):
        tokens.add(TokenRequest(name="bob", role="viewer"), ANYBODY)
    tokens.add(TokenRequest(name="ada", role="admin"), ANYBODY)
    assert tokens.for_people()


def test_a_stack_whose_tokens_all_ended_stays_closed(tokens, engine, give):
    give(tokens, "ada", "admin")
    tokens.revoke("ada", "ada")
    assert Tokens(engine, DeploySettings()).for_people()


def test_the_first_token_closes_an_open_server_at_once(http):
    made = http.post("/tokens", json={"name": "ada", "role": "admin"}).json()
    assert made["made_by"] == "ada"
    assert http.get("/releases").status_code == 401
    bearer = {"Authorization": f"Bearer {made['token']}"}
    assert http.get("/releases", headers=bearer).status_code == 200
    (entry,) = http.get("/tokens", headers=bearer).json()
    assert made["token"] not in str(entry)


def test_who_acts_is_whom_the_token_names(http):
    token = http.post("/tokens", json={"name": "ada", "role": "admin"}).json()["token"]
    bearer = {"Authorization": f"Bearer {token}"}
    run = http.post("/updates", headers=bearer | {"X-Forgewatch-Actor": "eve"}).json()
    assert run["requested_by"] == "ada"


def test_the_settings_tokens_are_an_admin_s_and_two_machines(settings):
    given = settings.model_copy(
        update={"token": SecretStr("s"), "detector_token": SecretStr("d"), "updater_token": SecretStr("u")}
    )
    with open_services(given) as services:
        tokens = services.access.tokens
        assert tokens.person_of(hash_of("s")) == Person(SHARED, frozenset({"admin"}), "token")
        assert tokens.person_of(hash_of("d")) == Person("detector", frozenset({"detector"}), "token")
        assert tokens.person_of(hash_of("u")) == Person("updater", frozenset({"updater"}), "token")


def test_where_every_admin_s_token_has_ended_the_settings_token_lets_in_again(settings):
    """And without it nobody gets in: a stack that had people is not open to everybody again."""
    statuses = []
    for given in (settings, settings.model_copy(update={"token": SecretStr("s")})):
        with (
            open_services(given) as services,
            TestClient(create_app(given, services), base_url="http://127.0.0.1:8700") as client,
        ):
            if given is settings:
                services.access.tokens.add(TokenRequest(name="ada", role="admin", days=1), ROOT)
                services.access.tokens.revoke("ada", "ada")
            wanted = {"name": "ada", "role": "admin"}
            for headers in ({}, {"Authorization": "Bearer s"}):
                statuses.append(client.post("/tokens", json=wanted, headers=headers).status_code)
    assert statuses == [401, 401, 401, 201]


def test_a_machine_s_token_in_the_settings_leaves_a_stack_on_loopback_open(settings):
    given = settings.model_copy(update={"detector_token": SecretStr("d")})
    with (
        open_services(given) as services,
        TestClient(create_app(given, services), base_url="http://127.0.0.1:8700") as client,
    ):
        assert client.get("/releases").status_code == 200
        assert client.get("/releases", headers={"Authorization": "Bearer d"}).status_code == 403
        assert client.get("/rollout", headers={"Authorization": "Bearer d"}).status_code == 200


def test_who_gave_and_who_ended_a_token_is_on_record_and_the_token_is_not(tokens, give, engine):
    token = give(tokens, "ada", "admin")
    tokens.revoke("ada", "root")
    with closing(Record(str(engine.url))) as record:
        ended, given = record.entries(10)
    assert (given.action, given.subject, given.details["role"]) == ("add token", "token of ada", "admin")
    assert (ended.actor, ended.action, ended.subject) == ("root", "revoke token", "token of ada")
    assert token not in given.model_dump_json()


OPEN = {("get", "/healthz"), ("post", "/login")}
MACHINES = {
    "detector": {("get", "/rollout"), ("get", "/artifacts/{digest}/{name}")},
    "updater": {
        ("get", "/rollout"),
        ("get", "/artifacts/{digest}/{name}"),
        ("put", "/artifacts/{digest}/{name}"),
        ("post", "/releases"),
    },
}
UNRULED = {"/openapi.json"}
"""What describes the API: it is in the source, for everybody to read."""


def operations(client):
    """(method, path, description) of every operation that OpenAPI lists."""
    for path, methods in client.get("/openapi.json").json()["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def called(client, method, path, headers=None):
    """The status that a call without a body gets, its path filled with what exists nowhere."""
    filled = path.replace("{digest}", "0" * 64)
    filled = re.sub(r"\{(number|run)\}", "999", filled)
    filled = re.sub(r"\{\w+\}", "nowhere", filled)
    return client.request(method, filled, headers=headers).status_code


def test_every_operation_has_a_rule(stranger):
    without = [(method, path) for method, path, operation in operations(stranger) if not operation.get(RULE)]
    assert without == []


def test_nothing_is_served_that_openapi_does_not_list(settings, services):
    app = create_app(settings, services)
    assert {route.path for route in app.routes if hasattr(route, "path")} == UNRULED
    for router in (route.original_router for route in app.routes if not hasattr(route, "path")):
        for route in router.routes:
            assert isinstance(route, GuardedRoute), f"{route} takes no notice of its rule"
            assert route.include_in_schema, route.path


def test_each_role_may_call_what_the_rule_says_and_nothing_else(stranger, bearers):
    counted = 0
    for method, path, operation in operations(stranger):
        rule = operation[RULE]
        for role, bearer in bearers.items():
            status, counted = called(stranger, method, path, bearer), counted + 1
            if role in rule:
                assert status not in (401, 403), (method, path, role)
            elif ANYONE not in rule:
                assert status == 403, (method, path, role)
    assert counted >= 6 * 28


def test_a_stranger_may_call_what_asks_nobody_and_nothing_else(stranger, bearers):
    forged = {"Authorization": "Bearer fw_forged"}
    for method, path, operation in operations(stranger):
        if (method, path) in OPEN:
            assert operation[RULE] == [ANYONE]
        else:
            assert called(stranger, method, path) == 401, (method, path)
            assert called(stranger, method, path, forged) == 401, (method, path)
            named = {"X-Forgewatch-Actor": "ada", "X-Forwarded-User": "ada", "X-Forwarded-Groups": "admin"}
            assert called(stranger, method, path, named) == 401, (method, path)


def test_a_machine_may_make_its_own_calls_alone(stranger):
    for machine, its_own in MACHINES.items():
        may = {
            (method, path) for method, path, operation in operations(stranger) if machine in operation[RULE]
        }
        assert may == its_own


def test_each_role_of_a_person_may_all_that_the_one_before_may(stranger):
    may = [
        {(method, path) for method, path, operation in operations(stranger) if role in operation[RULE]}
        for role in PEOPLE
    ]
    assert all(less < more for less, more in pairwise(may))


def test_who_may_only_look_changes_nothing(stranger):
    looked_up = {"/known-media", "/test-media", "/logout"}
    for method, path, operation in operations(stranger):
        if "viewer" in operation[RULE]:
            assert method == "get" or path in looked_up, (method, path)


@pytest.mark.parametrize("kind", [GuardedRoute, APIRoute])
def test_an_endpoint_without_a_rule_answers_nobody(kind, settings, services, bearers):
    """With the negative control: a route that is not guarded answers everybody, which a test above finds."""
    router = APIRouter(route_class=kind)
    router.add_api_route("/new", lambda: "something")
    app = create_app(settings, services)
    app.include_router(router)
    with TestClient(app, base_url="https://127.0.0.1:8700") as client:
        statuses = {client.get("/new", headers=bearer).status_code for bearer in bearers.values()}
    assert statuses == ({403} if kind is GuardedRoute else {200})


def test_a_stranger_s_body_is_not_parsed(stranger, bearers):
    json = {"Content-Type": "application/json"}
    refused = stranger.post("/labels", content=b"{" * 100, headers=json)
    assert refused.status_code == 401
    malformed = stranger.post("/labels", content=b"{" * 100, headers=json | bearers["reviewer"])
    assert malformed.status_code == 422


def test_a_body_of_more_than_a_mebibyte_is_refused_where_no_file_is_taken(stranger, bearers):
    json = {"Content-Type": "application/json"} | bearers["approver"]
    long = b'{"reason": "' + b"x" * 2**20 + b'"}'
    assert stranger.post("/rollback", content=long, headers=json).status_code == 413
    assert stranger.post("/rollback", content=long[: 2**20 - 2] + b'"}', headers=json).status_code == 422
    put = stranger.put(f"/artifacts/{'0' * 64}/model_card.md", content=long, headers=bearers["updater"])
    assert put.status_code == 413  # by the endpoint's own limit, which a test sets at 100,000
    assert "100000" in put.text

"""Tokens: shown once, kept as a hash, good until they expire or are revoked."""

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from pydantic import SecretStr
from sqlalchemy import Engine

from deploy.access.roles import Person, TokenRequest
from deploy.access.tokens import SHARED, TokenError, Tokens, UnknownTokenError, hash_of
from deploy.app import create_app
from deploy.record.record import Record
from deploy.server.services import open_services
from deploy.settings import DeploySettings

ROOT = Person("root", frozenset({"admin"}), "token")
ANYBODY = Person("ada", frozenset({"admin"}), "loopback")
Give = Callable[..., str]


def test_a_token_names_its_holder_and_role(tokens: Tokens, give: Give) -> None:
    token = give(tokens, "ada", "approver")
    assert tokens.person_of(hash_of(token)) == Person("ada", frozenset({"approver"}), "token")
    assert tokens.person_of(hash_of(token + "x")) is None


def test_the_database_holds_no_token(tokens: Tokens, give: Give, tmp_path: Path, engine: Engine) -> None:
    token = give(tokens, "ada", "admin")
    engine.dispose()
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("ledger.sqlite*"))
    assert hash_of(token).encode() in stored
    assert token.removeprefix("fw_").encode() not in stored


def test_a_token_ends_when_it_expires(tokens: Tokens, give: Give, clock) -> None:
    token = give(tokens, "ada", "admin", days=7)
    clock.go(days=7, seconds=-1)
    assert tokens.person_of(hash_of(token)) is not None
    clock.go(seconds=1)
    assert tokens.person_of(hash_of(token)) is None


def test_a_token_ends_when_it_is_revoked_and_its_name_may_have_another(tokens: Tokens, give: Give) -> None:
    token = give(tokens, "ada", "admin")
    assert tokens.revoke("ada", "root").revoked_by == "root"
    assert tokens.person_of(hash_of(token)) is None
    again = give(tokens, "ada", "viewer")
    assert tokens.person_of(hash_of(again)) is not None
    with pytest.raises(UnknownTokenError, match="eve has no token"):
        tokens.revoke("eve", "root")


def test_its_last_use_is_noted_to_the_minute(tokens: Tokens, give: Give, clock) -> None:
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
def test_a_name_that_misleads_gets_none(tokens: Tokens, give: Give, name: str, says: str) -> None:
    give(tokens, "ada", "admin")
    with pytest.raises(TokenError, match=says):
        tokens.add(TokenRequest(name=name, role="viewer"), ROOT)
    assert len(tokens.entries()) == 1


def test_the_first_person_s_token_is_an_admin_s_and_closes_the_stack(tokens: Tokens) -> None:
    tokens.add(TokenRequest(name="detector-eu", role="detector"), ANYBODY)
    assert not tokens.for_people()
    with pytest.raises(TokenError, match="admin"):
        tokens.add(TokenRequest(name="bob", role="viewer"), ANYBODY)
    tokens.add(TokenRequest(name="ada", role="admin"), ANYBODY)
    assert tokens.for_people()


def test_a_stack_whose_tokens_all_ended_stays_closed(tokens: Tokens, engine: Engine, give: Give) -> None:
    give(tokens, "ada", "admin")
    tokens.revoke("ada", "ada")
    assert Tokens(engine, DeploySettings()).for_people()


def test_the_first_token_closes_an_open_server_at_once(http: TestClient) -> None:
    made = http.post("/tokens", json={"name": "ada", "role": "admin"}).json()
    assert made["made_by"] == "ada"
    assert http.get("/releases").status_code == 401
    bearer = {"Authorization": f"Bearer {made['token']}"}
    assert http.get("/releases", headers=bearer).status_code == 200
    (entry,) = http.get("/tokens", headers=bearer).json()
    assert made["token"] not in str(entry)


def test_who_acts_is_whom_the_token_names(http: TestClient) -> None:
    token = http.post("/tokens", json={"name": "ada", "role": "admin"}).json()["token"]
    bearer = {"Authorization": f"Bearer {token}"}
    run = http.post("/updates", headers=bearer | {"X-Forgewatch-Actor": "eve"}).json()
    assert run["requested_by"] == "ada"


def test_the_settings_tokens_are_an_admin_s_and_two_machines(settings: DeploySettings) -> None:
    given = settings.model_copy(
        update={"token": SecretStr("s"), "detector_token": SecretStr("d"), "updater_token": SecretStr("u")}
    )
    with open_services(given) as services:
        tokens = services.access.tokens
        assert tokens.person_of(hash_of("s")) == Person(SHARED, frozenset({"admin"}), "token")
        assert tokens.person_of(hash_of("d")) == Person("detector", frozenset({"detector"}), "token")
        assert tokens.person_of(hash_of("u")) == Person("updater", frozenset({"updater"}), "token")


def test_where_every_admin_s_token_has_ended_the_settings_token_lets_in_again(
    settings: DeploySettings,
) -> None:
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


def test_a_machine_s_token_in_the_settings_leaves_a_stack_on_loopback_open(settings: DeploySettings) -> None:
    given = settings.model_copy(update={"detector_token": SecretStr("d")})
    with (
        open_services(given) as services,
        TestClient(create_app(given, services), base_url="http://127.0.0.1:8700") as client,
    ):
        assert client.get("/releases").status_code == 200
        assert client.get("/releases", headers={"Authorization": "Bearer d"}).status_code == 403
        assert client.get("/rollout", headers={"Authorization": "Bearer d"}).status_code == 200


def test_who_gave_and_who_ended_a_token_is_on_record_and_the_token_is_not(
    tokens: Tokens, give: Give, engine: Engine
) -> None:
    token = give(tokens, "ada", "admin")
    tokens.revoke("ada", "root")
    with closing(Record(str(engine.url))) as record:
        ended, given = record.entries(10)
    assert (given.action, given.subject, given.details["role"]) == ("add token", "token of ada", "admin")
    assert (ended.actor, ended.action, ended.subject) == ("root", "revoke token", "token of ada")
    assert token not in given.model_dump_json()

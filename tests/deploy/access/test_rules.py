"""Every role at every endpoint: what the rule says, and nothing else."""

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from fastapi import APIRouter
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from deploy.access.guard import GuardedRoute
from deploy.access.roles import ANYONE, PEOPLE, RULE
from deploy.app import create_app
from deploy.server.services import Services
from deploy.settings import DeploySettings

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

Headers = dict[str, dict[str, str]]


def operations(client: TestClient) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(method, path, description) of every operation that OpenAPI lists."""
    for path, methods in client.get("/openapi.json").json()["paths"].items():
        for method, operation in methods.items():
            yield method, path, operation


def called(client: TestClient, method: str, path: str, headers: dict[str, str] | None = None) -> int:
    """The status that a call without a body gets, its path filled with what exists nowhere."""
    filled = path.replace("{digest}", "0" * 64)
    filled = re.sub(r"\{(number|run)\}", "999", filled)
    filled = re.sub(r"\{\w+\}", "nowhere", filled)
    return client.request(method, filled, headers=headers).status_code


def test_every_operation_has_a_rule(stranger: TestClient) -> None:
    without = [(method, path) for method, path, operation in operations(stranger) if not operation.get(RULE)]
    assert without == []


def test_nothing_is_served_that_openapi_does_not_list(settings: DeploySettings, services: Services) -> None:
    app = create_app(settings, services)
    assert {route.path for route in app.routes if hasattr(route, "path")} == UNRULED
    for router in (route.original_router for route in app.routes if not hasattr(route, "path")):
        for route in router.routes:
            assert isinstance(route, GuardedRoute), f"{route} takes no notice of its rule"
            assert route.include_in_schema, route.path


def test_each_role_may_call_what_the_rule_says_and_nothing_else(
    stranger: TestClient, bearers: Headers
) -> None:
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


def test_a_stranger_may_call_what_asks_nobody_and_nothing_else(
    stranger: TestClient, bearers: Headers
) -> None:
    forged = {"Authorization": "Bearer fw_forged"}
    for method, path, operation in operations(stranger):
        if (method, path) in OPEN:
            assert operation[RULE] == [ANYONE]
        else:
            assert called(stranger, method, path) == 401, (method, path)
            assert called(stranger, method, path, forged) == 401, (method, path)
            named = {"X-Forgewatch-Actor": "ada", "X-Forwarded-User": "ada", "X-Forwarded-Groups": "admin"}
            assert called(stranger, method, path, named) == 401, (method, path)


def test_a_machine_may_make_its_own_calls_alone(stranger: TestClient) -> None:
    for machine, its_own in MACHINES.items():
        may = {
            (method, path) for method, path, operation in operations(stranger) if machine in operation[RULE]
        }
        assert may == its_own


def test_each_role_of_a_person_may_all_that_the_one_before_may(stranger: TestClient) -> None:
    may = [
        {(method, path) for method, path, operation in operations(stranger) if role in operation[RULE]}
        for role in PEOPLE
    ]
    assert all(less < more for less, more in pairwise(may))


def test_who_may_only_look_changes_nothing(stranger: TestClient) -> None:
    looked_up = {"/known-media", "/test-media", "/logout"}
    for method, path, operation in operations(stranger):
        if "viewer" in operation[RULE]:
            assert method == "get" or path in looked_up, (method, path)


@pytest.mark.parametrize("kind", [GuardedRoute, APIRoute])
def test_an_endpoint_without_a_rule_answers_nobody(
    kind: type[APIRoute], settings: DeploySettings, services: Services, bearers: Headers
) -> None:
    """With the negative control: a route that is not guarded answers everybody, which a test above finds."""
    router = APIRouter(route_class=kind)
    router.add_api_route("/new", lambda: "something")
    app = create_app(settings, services)
    app.include_router(router)
    with TestClient(app, base_url="https://127.0.0.1:8700") as client:
        statuses = {client.get("/new", headers=bearer).status_code for bearer in bearers.values()}
    assert statuses == ({403} if kind is GuardedRoute else {200})


def test_a_stranger_s_body_is_not_parsed(stranger: TestClient, bearers: Headers) -> None:
    json = {"Content-Type": "application/json"}
    refused = stranger.post("/labels", content=b"{" * 100, headers=json)
    assert refused.status_code == 401
    malformed = stranger.post("/labels", content=b"{" * 100, headers=json | bearers["reviewer"])
    assert malformed.status_code == 422


def test_a_body_of_more_than_a_mebibyte_is_refused_where_no_file_is_taken(
    stranger: TestClient, bearers: Headers
) -> None:
    json = {"Content-Type": "application/json"} | bearers["approver"]
    long = b'{"reason": "' + b"x" * 2**20 + b'"}'
    assert stranger.post("/rollback", content=long, headers=json).status_code == 413
    assert stranger.post("/rollback", content=long[: 2**20 - 2] + b'"}', headers=json).status_code == 422
    put = stranger.put(f"/artifacts/{'0' * 64}/model_card.md", content=long, headers=bearers["updater"])
    assert put.status_code == 413  # by the endpoint's own limit, which a test sets at 100,000
    assert "100000" in put.text

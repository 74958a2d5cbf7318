"""A proxy's word: believed from the addresses of the setting, dropped from everywhere else."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from fastapi.testclient import TestClient
from pydantic import ValidationError
from starlette.datastructures import Headers

from deploy.access.proxy import person_of_proxy
from deploy.app import create_app
from deploy.server.services import open_services
from deploy.settings import DeploySettings

PROXY = "10.1.2.3"
ADA = {"X-Forwarded-User": "ada", "X-Forwarded-Groups": "staff,forge-approvers"}


@pytest.fixture
def behind(settings: DeploySettings, monkeypatch: pytest.MonkeyPatch) -> DeploySettings:
    """Settings that believe a proxy."""
    monkeypatch.setenv("FORGEWATCH_DEPLOY_PROXY_ADDRESSES", '["10.1.0.0/16", "fd00::/8"]')
    monkeypatch.setenv("FORGEWATCH_DEPLOY_PROXY_ROLES", '{"forge-approvers": "approver", "staff": "viewer"}')
    return DeploySettings()


@pytest.fixture
def asked(behind: DeploySettings) -> Callable[..., object]:
    """Calls the server as if from an address."""

    @contextmanager
    def client(address: str) -> Iterator[TestClient]:
        with (
            open_services(behind) as services,
            TestClient(
                create_app(behind, services), base_url="http://deploy.example", client=(address, 1234)
            ) as opened,
        ):
            yield opened

    return client


def test_it_names_the_person_and_their_groups_the_roles(asked) -> None:
    with asked(PROXY) as client:
        assert client.get("/releases", headers=ADA).status_code == 200
        assert client.get("/tokens", headers=ADA).status_code == 403
        run = client.post("/updates", headers=ADA | {"X-Forgewatch-Actor": "eve"}).json()
        assert run["requested_by"] == "ada"
        nobody = ADA | {"X-Forwarded-Groups": "others"}
        refused = client.get("/releases", headers=nobody)
        assert (refused.status_code, "no role here" in refused.text) == (403, True)


@pytest.mark.parametrize("address", ["10.2.0.1", "127.0.0.1", "::1", "testclient", "fe80::1"])
def test_from_elsewhere_it_is_dropped(asked, address: str) -> None:
    with asked(address) as client:
        assert client.get("/releases", headers=ADA).status_code == 401
        assert client.get("/releases", headers=ADA | {"X-Forwarded-For": PROXY}).status_code == 401


@pytest.mark.parametrize("address", [PROXY, "::ffff:10.1.2.3", "fd00::1"])
def test_an_address_counts_however_it_is_written(behind: DeploySettings, address: str) -> None:
    person = person_of_proxy(behind, address, Headers(ADA))
    assert person is not None
    assert person.roles == {"approver", "viewer"}


def test_a_header_that_comes_twice_is_refused(asked) -> None:
    with asked(PROXY) as client:
        twice = [*ADA.items(), ("X-Forwarded-User", "root")]
        assert client.get("/releases", headers=twice).status_code == 400


def test_a_page_of_another_origin_sends_nothing_in_a_proxied_person_s_name(asked) -> None:
    with asked(PROXY) as client:
        assert client.post("/updates", headers=ADA).status_code == 403
        assert client.post("/updates", headers=ADA | {"Origin": "http://evil.example"}).status_code == 403


@pytest.mark.parametrize("wrong", ['["10.1.0.0/99"]', '["proxy.example"]', "10.1.0.0/16"])
def test_a_wrong_address_is_no_setting(monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.setenv("FORGEWATCH_DEPLOY_PROXY_ADDRESSES", wrong)
    with pytest.raises((ValidationError, ValueError), match="proxy_addresses"):
        DeploySettings()

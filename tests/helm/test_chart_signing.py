"""The chart signs releases unless it is told not to, and the key goes to who signs alone."""

from typing import Any

import pytest

pytestmark = pytest.mark.slow


def test_releases_are_signed_by_default_and_a_training_run_alone_holds_the_key(
    render: Any, scenario: str
) -> None:
    found = render(scenario)
    held = {
        component: {item["key"] for item in volume["secret"]["items"]}
        for component, template in found.pods().items()
        for volume in template["spec"]["volumes"]
        if volume["name"] == "signing"
    }
    assert held == {"run": {"tls.crt", "tls.key"}, "detector": {"tls.crt"}, "deploy": {"tls.crt"}}
    holding = {
        name
        for name, each in found.containers()
        if "FORGEWATCH_UPDATER_SIGNING_KEY" in {variable["name"] for variable in each["env"]}
    }
    assert holding == {"run/run"}


def test_where_signing_is_off_no_process_is_told_of_keys(render: Any) -> None:
    found = render(over={"signing": {"enabled": False, "secret": ""}})
    names = {variable["name"] for _, each in found.containers() for variable in each["env"]}
    assert not names & {"FORGEWATCH_UPDATER_SIGNING_KEY", "FORGEWATCH_DETECTOR_TRUSTED_SIGNERS"}
    mounts = {mount["name"] for _, each in found.containers() for mount in each["volumeMounts"]}
    assert "signing" not in mounts

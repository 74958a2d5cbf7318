"""What helm says after an install: the commands are there, and name what the chart made."""

import os
import re
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import typer

from deploy.cli.main import app

Notes = Callable[..., str]


@pytest.fixture
def notes(helm: str, chart: Any) -> Notes:
    """Give what helm says of a scenario, with some values set."""

    def say(scenario: str, *values: str) -> str:
        given = ["-f", str(chart.values(scenario)), *(word for each in values for word in ("--set", each))]
        done = subprocess.run(
            [helm, "install", "watch", chart.path, "-n", "media", "--dry-run=client", *given],
            env=os.environ | {"KUBECONFIG": "/nonexistent"},
            capture_output=True,
            text=True,
            check=False,
        )
        if "cluster unreachable" in done.stderr:
            pytest.skip("this helm says nothing without a cluster; helm 4 does")
        assert done.returncode == 0, done.stderr
        return done.stdout.partition("NOTES:\n")[2]

    return say


def test_each_command_of_forgewatch_is_one(notes: Notes) -> None:
    group = typer.main.get_command(app)
    said = re.findall(r"^ +forgewatch (\w+)", notes("minimal"), re.MULTILINE)
    assert len(said) > 3
    assert set(said) <= set(group.list_commands(typer.Context(group)))  # type: ignore[attr-defined]


def test_they_name_the_service_its_port_and_the_secret(notes: Notes, render: Any) -> None:
    said = notes("existing-secrets", "settings.deploy.port=8800")
    api = render("existing-secrets").one("Service", "deploy")["metadata"]["name"]
    assert f"port-forward service/{api} 8800" in said
    assert "FORGEWATCH_DEPLOY_URL=http://127.0.0.1:8800\n" in said
    assert r"get secret vault-token -o jsonpath='{.data.forgewatch\.token}'" in said


@pytest.mark.parametrize(("replicas", "told"), [(0, True), (1, False)])
def test_who_installed_without_detectors_is_told_how_to_get_some(
    notes: Notes, replicas: int, told: bool
) -> None:
    said = notes("minimal", f"detector.replicas={replicas}")
    assert ("helm -n media upgrade watch CHART --reuse-values --set detector.replicas=" in said) is told
    assert ("no detectors" in notes("tls-sasl", f"detector.replicas={replicas}")) is False


def test_an_operator_that_is_missing_is_told(notes: Notes) -> None:
    said = notes("production")
    assert "no PodMonitor and no PrometheusRule" in said
    assert "KEDA is not installed" in said
    assert "no HTTPRoute" in said
    assert "not installed here" not in notes("minimal")

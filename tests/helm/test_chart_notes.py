"""What helm says after an install: the commands are there, and name what the chart made."""

import json
import os
import re
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import typer
import yaml

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
    assert (
        "exec deployment/watch-forgewatch-deploy -- env FORGEWATCH_DEPLOY_URL=http://127.0.0.1:8800 " in said
    )
    assert r"get secret vault-token -o jsonpath='{.data.forgewatch\.token}'" in said


OPEN = ("networkPolicy.enabled=false",)
INGRESS = (*OPEN, *(f"deploy.ingress.{each}" for each in ("enabled=true", "host=in.example", "tlsSecret=t")))
ROUTE = (*OPEN, "deploy.httpRoute.enabled=true", "deploy.httpRoute.parentRefs[0].name=public")


@pytest.mark.parametrize(
    ("values", "address"),
    [
        ((), "http://watch-forgewatch-deploy.media:8700"),
        (INGRESS, "https://in.example"),
        ((*ROUTE, "deploy.httpRoute.hostnames={route.example}"), "https://route.example"),
        ((*INGRESS, "settings.deploy.url=https://own.example/"), "https://own.example"),
    ],
)
def test_they_say_where_the_page_is(notes: Notes, values: tuple[str, ...], address: str) -> None:
    said = notes("minimal", *values)
    assert f"The page is at {address}/" in said
    assert ("port-forward" in said) is (not values)


@pytest.mark.parametrize(("replicas", "told"), [(0, True), (1, False)])
def test_who_installed_without_detectors_is_told_how_to_get_some(
    notes: Notes, replicas: int, told: bool
) -> None:
    said = notes("minimal", f"detector.replicas={replicas}")
    assert (
        "helm -n media upgrade watch CHART --reset-then-reuse-values --set detector.replicas=" in said
    ) is told
    assert ("no detectors" in notes("tls-sasl", f"detector.replicas={replicas}")) is False


def test_an_operator_that_is_missing_is_told(notes: Notes) -> None:
    said = notes("production")
    assert "no PodMonitor and no PrometheusRule" in said
    assert "KEDA is not installed" in said
    assert "no HTTPRoute" in said
    assert "not installed here" not in notes("minimal")


MONITORING = {"podMonitors": {"enabled": True}, "rules": {"enabled": True}, "dashboards": {"enabled": True}}


def test_each_file_of_rules_is_a_prometheus_rule_as_it_is_written(render: Any, chart: Any) -> None:
    written = {path.stem: yaml.safe_load(path.read_text()) for path in (chart.path / "rules").glob("*.yaml")}
    found = {
        each["metadata"]["name"].removeprefix("watch-forgewatch-"): each["spec"]
        for each in render(over={"monitoring": MONITORING}).of("PrometheusRule")
    }
    for each in written.values():
        for rule in [rule for group in each["groups"] for rule in group["rules"] if "alert" in rule]:
            page = rule["annotations"]["runbook_url"].removeprefix("helm/forgewatch/")
            rule["annotations"]["runbook_url"] = f"http://watch-forgewatch-deploy.media:8700/{page}"
    assert found == written


def test_each_alert_leads_to_where_the_runbooks_are_served(render: Any) -> None:
    served = {"enabled": True, "runbooksUrl": "https://docs.example/runbooks/"}
    found = render(over={"monitoring": {"rules": served}}).of("PrometheusRule")
    rules = [rule for each in found for group in each["spec"]["groups"] for rule in group["rules"]]
    addresses = [rule["annotations"]["runbook_url"] for rule in rules if "alert" in rule]
    assert len(addresses) > 20
    assert all(address.startswith("https://docs.example/runbooks/Forgewatch") for address in addresses)


def test_each_dashboard_is_a_config_map_that_the_side_car_finds(render: Any, chart: Any) -> None:
    written = {path.name: json.loads(path.read_text()) for path in (chart.path / "dashboards").glob("*.json")}
    maps = render(over={"monitoring": MONITORING}).of("ConfigMap")
    assert {name: json.loads(text) for each in maps for name, text in each["data"].items()} == written
    assert all(each["metadata"]["labels"]["grafana_dashboard"] == "1" for each in maps)
    other = {"enabled": True, "label": "dashboards", "labelValue": "yes", "annotations": {"folder": "Media"}}
    for each in render(over={"monitoring": {"dashboards": other}}).of("ConfigMap"):
        assert each["metadata"]["labels"]["dashboards"] == "yes"
        assert each["metadata"]["annotations"] == {"folder": "Media"}


def test_each_process_is_scraped_at_its_metrics_port(render: Any) -> None:
    found = render("production")
    pods = found.pods()
    for monitor in found.of("PodMonitor"):
        assert monitor["metadata"]["labels"]["release"] == "prometheus"
        selector = monitor["spec"]["selector"]["matchLabels"]
        (component,) = [
            name for name, pod in pods.items() if selector.items() <= pod["metadata"]["labels"].items()
        ]
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        ports = [
            port["name"]
            for name, each in found.containers()
            if name.startswith(component)
            for port in each.get("ports", [])
        ]
        assert endpoint == {"port": "metrics", "interval": "15s"}
        assert "metrics" in ports
    assert len(found.of("PodMonitor")) == len(pods) - 1  # the hook has none


@pytest.mark.parametrize("part", MONITORING)
def test_what_is_not_asked_for_is_not_made(render: Any, part: str) -> None:
    kinds = {"podMonitors": "PodMonitor", "rules": "PrometheusRule", "dashboards": "ConfigMap"}
    found = render("production", over={"monitoring": {part: {"enabled": False}}})
    assert found.of(kinds[part]) == []

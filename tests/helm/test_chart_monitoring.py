"""Rules and dashboards reach the cluster as they lie in the chart, if asked for and where their API is."""

import json
from typing import Any

import pytest
import yaml

MONITORING = {"podMonitors": {"enabled": True}, "rules": {"enabled": True}, "dashboards": {"enabled": True}}


def test_each_file_of_rules_is_a_prometheus_rule_as_it_is_written(render: Any, chart: Any) -> None:
    written = {path.stem: yaml.safe_load(path.read_text()) for path in (chart.path / "rules").glob("*.yaml")}
    found = {
        each["metadata"]["name"].removeprefix("watch-forgewatch-"): each["spec"]
        for each in render(over={"monitoring": MONITORING}).of("PrometheusRule")
    }
    assert found == written


def test_each_alert_leads_to_where_the_runbooks_are_served(render: Any) -> None:
    served = {"enabled": True, "runbooksUrl": "https://docs.example/runbooks/"}
    found = render(over={"monitoring": {"rules": served}}).of("PrometheusRule")
    rules = [rule for each in found for group in each["spec"]["groups"] for rule in group["rules"]]
    addresses = [rule["annotations"]["runbook_url"] for rule in rules if "alert" in rule]
    assert len(addresses) > 20
    assert all(one.startswith("https://docs.example/runbooks/Forgewatch") for one in addresses)


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

"""What helm says after an install: the commands are there, and name what the chart made."""

import json
import os
import re
import shutil
import subprocess

import pytest
import typer
import yaml

from deploy.cli.main import app


@pytest.fixture
def notes(helm, chart):

    def say(scenario, *values):
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


def test_each_command_of_forgewatch_is_one(notes):
    group = typer.main.get_command(app)
    said = re.findall(r"^ +forgewatch (\w+)", notes("minimal"), re.MULTILINE)
    assert len(said) > 3
    assert set(said) <= set(group.list_commands(typer.Context(group)))


def test_they_name_the_service_its_port_and_the_secret(notes, render):
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
def test_they_say_where_the_page_is(notes, values, address):
    said = notes("minimal", *values)
    assert f"The page is at {address}/" in said
    assert ("port-forward" in said) is (not values)


@pytest.mark.parametrize(("replicas", "told"), [(0, True), (1, False)])
def test_who_installed_without_detectors_is_told_how_to_get_some(notes, replicas, told):
    said = notes("minimal", f"detector.replicas={replicas}")
    assert (
        "helm -n media upgrade watch CHART --reset-then-reuse-values --set detector.replicas=" in said
    ) is told
    assert ("no detectors" in notes("tls-sasl", f"detector.replicas={replicas}")) is False


def test_an_operator_that_is_missing_is_told(notes):
    said = notes("production")
    assert "no PodMonitor and no PrometheusRule" in said
    assert "KEDA is not installed" in said
    assert "no HTTPRoute" in said
    assert "not installed here" not in notes("minimal")


MONITORING = {"podMonitors": {"enabled": True}, "rules": {"enabled": True}, "dashboards": {"enabled": True}}


def test_each_file_of_rules_is_a_prometheus_rule_as_it_is_written(render, chart):
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


def test_each_alert_leads_to_where_the_runbooks_are_served(render):
    served = {"enabled": True, "runbooksUrl": "https://docs.example/runbooks/"}
    found = render(over={"monitoring": {"rules": served}}).of("PrometheusRule")
    rules = [rule for each in found for group in each["spec"]["groups"] for rule in group["rules"]]
    addresses = [rule["annotations"]["runbook_url"] for rule in rules if "alert" in rule]
    assert len(addresses) > 20
    assert all(address.startswith("https://docs.example/runbooks/Forgewatch") for address in addresses)


def test_each_dashboard_is_a_config_map_that_the_side_car_finds(render, chart):
    written = {path.name: json.loads(path.read_text()) for path in (chart.path / "dashboards").glob("*.json")}
    maps = render(over={"monitoring": MONITORING}).of("ConfigMap")
    assert {name: json.loads(text) for each in maps for name, text in each["data"].items()} == written
    assert all(each["metadata"]["labels"]["grafana_dashboard"] == "1" for each in maps)
    other = {"enabled": True, "label": "dashboards", "labelValue": "yes", "annotations": {"folder": "Media"}}
    for each in render(over={"monitoring": {"dashboards": other}}).of("ConfigMap"):
        assert each["metadata"]["labels"]["dashboards"] == "yes"
        assert each["metadata"]["annotations"] == {"folder": "Media"}


def test_each_process_is_scraped_at_its_metrics_port(render):
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
def test_what_is_not_asked_for_is_not_made(render, part):
    kinds = {"podMonitors": "PodMonitor", "rules": "PrometheusRule", "dashboards": "ConfigMap"}
    found = render("production", over={"monitoring": {part: {"enabled": False}}})
    assert found.of(kinds[part]) == []


# A wrong value is refused by `helm template`, and the refusal names it.

REFUSED = """
fullnameOverride: [1-forgewatch]
enabled: [false]
postgresql: [{enabled: true}]
kafka: {bootstrapServers: [kafka, "kafka:9092, other:9092"], securityProtocol: [TLS], saslMechanism: [GSSAPI]}
kafka: {saslSecret: [Not A Name], partitions: [0, four], replication: [1.5], password: [hunter2]}
kafka: {clientCertificate: ["yes"]}
database: {secret: [UPPER], url: ["postgresql://user:password@host/name"], port: [70000]}
objectStore: {cropsUrl: [/var/lib/crops], artifactsUrl: ["https://bucket/artifacts"], secretKey: [x]}
objectStore: {endpointUrl: ["minio:9000"]}
deployToken: {token: [hunter2], key: [a key]}
webhooks: {url: ["https://hooks.example/hunter2"]}
signing: {enabled: ["yes"], key: ["-----BEGIN PRIVATE KEY-----"]}
image: {tag: [latest], pullPolicy: [Sometimes], worker: {digest: ["sha256:abc"], tag: ["1"]}}
env: {OTEL_TRACES_SAMPLER_ARG: [0.5]}
podSecurityContext: {runAsUser: [0], privileged: [true]}
settings: {deploy: {webhooks: [[{url: "https://hooks.example/hunter2"}]], health_urls: [["http://127.0.0.1"]]}}
settings: {updater: {signing_key: [/tmp/signing.key], device: [tpu]}, detectors: [{}]}
settings: {detector: {trusted_signers: [/tmp/signing.crt], max_batch_item: [3], max_batch_items: [0, "64"]}}
settings: {detector: {transactional_id: [mine], metrics_port: [80]}, memory: {database_url: ["sqlite://"]}}
settings: {ingest: {sasl_password: [hunter2], topic_prefix: [a/b]}, process: {log_level: [loud]}}
detector: {replicas: [-1], replica: [2], maxUnavailable: [half], modelStoreSize: [4 GB]}
detector: {autoscaling: {lagThreshold: [0], targetCPUPercent: [300]}, tolerations: [[{effect: NoWay}]]}
detector: {nodeSelector: [{zone: 1}]}
detector: {resources: {requests: {memory: [1GB]}, request: [{}]}}
detector: {torchserve: {gpu: {count: ["1"], resource: [gpu]}}}
memory: {index: {size: [big]}}
updater: {run: {terminationGracePeriodSeconds: [0], checkpoints: {claim: [mine]}}}
deploy: {replicas: [2], service: {type: [ExternalName]}, ingress: {host: ["https://forgewatch.example"]}}
deploy: {httpRoute: {parentRefs: [[{namespace: gateways}]]}}
networkPolicy: {metricsFrom: [[{}]], extraEgress: [[{port: 4317}]]}
monitoring: {podMonitors: {interval: [often]}, serviceMonitors: [{}]}
"""
"""Lists of values, each of which is refused where it stands."""


def refused(part, at=()):
    """The path of each value of the table, and the value."""
    for name, inner in part.items():
        if isinstance(inner, dict):
            yield from refused(inner, (*at, name))
        else:
            yield from (((*at, name), value) for value in inner)


def nested(path, value):
    for name in reversed(path):
        value = {name: value}
    return value


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "value"),
    [each for line in REFUSED.strip().splitlines() for each in refused(yaml.safe_load(line))],
)
def test_a_value_that_the_schema_does_not_have_is_refused_by_its_name(refusal, path, value):
    said = refusal(nested(path, value))
    assert "schema" in said
    assert all(name in said for name in path[-2:]), said


@pytest.mark.slow
def test_an_annotation_whose_name_is_longer_than_it_may_be_is_refused_by_it(refusal):
    name = "x" * 64
    assert name in refusal(nested(("deploy", "service", "annotations", name), "y"))


APART = """
minimal | image: {registry: ""} | image.registry is missing
minimal | kafka: {bootstrapServers: ""} | kafka.bootstrapServers is missing
minimal | database: {secret: ""} | database.secret is missing
minimal | objectStore: {cropsUrl: ""} | objectStore.cropsUrl is missing
minimal | objectStore: {artifactsUrl: ""} | objectStore.artifactsUrl is missing
minimal | deployToken: {secret: ""} | deployToken.secret is missing
minimal | webhooks: {secret: hooks} | settings.deploy.webhook_hosts is missing
minimal | signing: {secret: ""} | signing.secret is missing
minimal | signing: {enabled: false} | signing.secret is forgewatch-signing, but
minimal | deployToken: {updaterKey: ""} | deployToken.updaterKey is missing
minimal | deployToken: {detectorKey: token} | deployToken.detectorKey is token, which is
minimal | deployToken: {updaterKey: detector} | deployToken.updaterKey is detector, which
minimal | env: {FORGEWATCH_DETECTOR_GROUP_ID: x} | env.FORGEWATCH_DETECTOR_GROUP_ID is a setting
minimal | env: {AWS_SECRET_ACCESS_KEY: x} | env.AWS_SECRET_ACCESS_KEY is what the chart
tls-sasl | kafka: {saslSecret: ""} | kafka.saslSecret is missing: kafka.securityProtocol is SASL_SSL
tls-sasl | kafka: {saslMechanism: ""} | kafka.saslMechanism is missing
tls-sasl | kafka: {tlsSecret: ""} | kafka.clientCertificate is true, but kafka.tlsSecret
minimal | kafka: {saslSecret: user} | kafka.saslSecret is user, but kafka.securityProtocol is PLAIN
minimal | kafka: {saslMechanism: PLAIN} | kafka.saslMechanism is PLAIN, but
minimal | kafka: {tlsSecret: tls} | kafka.tlsSecret is tls, but kafka.securityProtocol is PLAIN
minimal | kafka: {keyPasswordKey: p} | kafka.keyPasswordKey is p, but kafka.clientCertificate
production | kafka: {partitions: 23} | detector.autoscaling.maxReplicas is 24, above kafka.partitions, 23
production | detector: {autoscaling: {minReplicas: 25}} | detector.autoscaling.minReplicas is 25
minimal | detector: {replicas: 5} | detector.replicas is 5, above kafka.partitions, 4
minimal | memory: {replicas: 5} | memory.replicas is 5, above kafka.partitions, 4
minimal | objectStore: {caKey: ca.crt} | objectStore.caKey is ca.crt, but objectStore.secret
minimal | webhooks: {caKey: ca.crt} | webhooks.caKey is ca.crt, but webhooks.secret
production | networkPolicy: {apiFrom: []} | networkPolicy.apiFrom is empty: deploy.ingress.enabled is true
minimal | deploy: {httpRoute: {enabled: true, parentRefs: [{name: a}]}} | empty: deploy.httpRoute.enabled
minimal | deploy: {service: {type: NodePort}} | apiFrom is empty: deploy.service.type is NodePort
production | deploy: {ingress: {host: ""}} | deploy.ingress.host is missing
production | deploy: {ingress: {tlsSecret: ""}} | deploy.ingress.tlsSecret is missing
production | deploy: {httpRoute: {parentRefs: []}} | deploy.httpRoute.parentRefs is empty
"""


@pytest.mark.slow
@pytest.mark.parametrize("row", APART.strip().splitlines())
def test_values_that_do_not_go_together_are_refused_by_their_names(refusal, row):
    scenario, over, named = row.split(" | ")
    assert named in refusal(yaml.safe_load(over), scenario)


@pytest.mark.slow
def test_all_that_is_missing_is_told_at_once(each_helm, chart):
    done = chart.run(each_helm, "template", "w", str(chart.path))
    missing = re.findall(r"^minimal .* \| (\w+\.\w+) is missing$", APART, re.MULTILINE)
    assert len(missing) > 6
    assert done.returncode != 0
    assert all(f"- {name} is missing" in done.stderr for name in missing)


@pytest.mark.slow
@pytest.mark.parametrize("group", ["enabled", "signing", "networkPolicy"])
def test_values_of_an_older_chart_are_refused_by_what_they_lack(each_helm, chart, tmp_path, group):
    """As `helm upgrade --reuse-values` has them, which leaves this chart's own defaults out."""
    older = shutil.copytree(chart.path, tmp_path / "forgewatch")
    values = yaml.safe_load((older / "values.yaml").read_text())
    del values[group]
    (older / "values.yaml").write_text(yaml.safe_dump(values))
    done = chart.run(each_helm, *chart.template("minimal", path=older))
    assert done.returncode != 0
    assert "schema" in done.stderr
    assert group in done.stderr


@pytest.mark.slow
def test_a_chart_above_this_one_has_it_by_a_condition(each_helm, chart, tmp_path):
    shutil.copytree(chart.path, tmp_path / "charts" / "forgewatch")
    needed = {"name": "forgewatch", "version": ">=0", "condition": "forgewatch.enabled"}
    about = {"apiVersion": "v2", "name": "platform", "version": "1.0.0", "dependencies": [needed]}
    (tmp_path / "Chart.yaml").write_text(yaml.safe_dump(about))
    values = yaml.safe_load(chart.values("minimal").read_text())
    for enabled in (True, False):
        above = {"forgewatch": values | {"enabled": enabled}, "global": {"cluster": "one"}}
        done = chart.run(each_helm, "template", "w", str(tmp_path), values=above)
        assert done.returncode == 0, done.stderr
        assert ("kind: StatefulSet" in done.stdout) is enabled


@pytest.mark.slow
def test_a_cluster_that_is_too_old_is_refused(each_helm, chart):
    done = chart.run(each_helm, *chart.template("minimal"), kubernetes="1.29.0")
    assert done.returncode != 0
    assert ">=1.30.0-0" in done.stderr

"""A wrong value is refused by `helm template`, and the refusal names it."""

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.slow

Refusal = Callable[..., str]


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


def refused(part: Any, at: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """The path of each value of the table, and the value."""
    for name, inner in part.items():
        if isinstance(inner, dict):
            yield from refused(inner, (*at, name))
        else:
            yield from (((*at, name), value) for value in inner)


def nested(path: tuple[str, ...], value: Any) -> Any:
    for name in reversed(path):
        value = {name: value}
    return value


@pytest.mark.parametrize(
    ("path", "value"),
    [each for line in REFUSED.strip().splitlines() for each in refused(yaml.safe_load(line))],
)
def test_a_value_that_the_schema_does_not_have_is_refused_by_its_name(
    refusal: Refusal, path: tuple[str, ...], value: Any
) -> None:
    said = refusal(nested(path, value))
    assert "schema" in said
    assert all(name in said for name in path[-2:]), said


def test_an_annotation_whose_name_is_longer_than_it_may_be_is_refused_by_it(refusal: Refusal) -> None:
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


@pytest.mark.parametrize("row", APART.strip().splitlines())
def test_values_that_do_not_go_together_are_refused_by_their_names(refusal: Refusal, row: str) -> None:
    scenario, over, named = row.split(" | ")
    assert named in refusal(yaml.safe_load(over), scenario)


def test_all_that_is_missing_is_told_at_once(each_helm: str, chart: Any) -> None:
    done = chart.run(each_helm, "template", "w", str(chart.path))
    missing = re.findall(r"^minimal .* \| (\w+\.\w+) is missing$", APART, re.MULTILINE)
    assert len(missing) > 6
    assert done.returncode != 0
    assert all(f"- {name} is missing" in done.stderr for name in missing)


@pytest.mark.parametrize("group", ["enabled", "signing", "networkPolicy"])
def test_values_of_an_older_chart_are_refused_by_what_they_lack(
    each_helm: str, chart: Any, tmp_path: Path, group: str
) -> None:
    """As `helm upgrade --reuse-values` has them, which leaves this chart's own defaults out."""
    older = shutil.copytree(chart.path, tmp_path / "forgewatch")
    values = yaml.safe_load((older / "values.yaml").read_text())
    del values[group]
    (older / "values.yaml").write_text(yaml.safe_dump(values))
    done = chart.run(each_helm, *chart.template("minimal", path=older))
    assert done.returncode != 0
    assert "schema" in done.stderr
    assert group in done.stderr


def test_a_chart_above_this_one_has_it_by_a_condition(each_helm: str, chart: Any, tmp_path: Path) -> None:
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


def test_a_cluster_that_is_too_old_is_refused(each_helm: str, chart: Any) -> None:
    done = chart.run(each_helm, *chart.template("minimal"), kubernetes="1.29.0")
    assert done.returncode != 0
    assert ">=1.30.0-0" in done.stderr

"""A wrong value is refused by `helm template`, and the refusal names it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.slow

Refusal = Callable[..., str]


def nested(path: str, value: Any) -> Any:
    for name in reversed(path.split("/")):
        value = {name: value}
    return value


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("kafka/bootstrapServers", "kafka"),
        ("kafka/bootstrapServers", "kafka:9092, other:9092"),
        ("kafka/securityProtocol", "TLS"),
        ("kafka/saslMechanism", "GSSAPI"),
        ("kafka/saslSecret", "Not A Name"),
        ("kafka/partitions", 0),
        ("kafka/partitions", "four"),
        ("kafka/replication", 1.5),
        ("kafka/clientCertificate", "yes"),
        ("kafka/password", "hunter2"),
        ("database/secret", "UPPER"),
        ("database/url", "postgresql://user:password@host/name"),
        ("database/port", 70000),
        ("objectStore/cropsUrl", "/var/lib/crops"),
        ("objectStore/artifactsUrl", "https://bucket/artifacts"),
        ("objectStore/endpointUrl", "minio:9000"),
        ("objectStore/secretKey", "hunter2"),
        ("deployToken/token", "hunter2"),
        ("webhooks/url", "https://hooks.example/hunter2"),
        ("settings/deploy/webhooks", [{"url": "https://hooks.example/hunter2"}]),
        ("deployToken/key", "a key"),
        ("signing/enabled", "yes"),
        ("signing/key", "-----BEGIN PRIVATE KEY-----"),
        ("settings/updater/signing_key", "/tmp/signing.key"),
        ("settings/detector/trusted_signers", "/tmp/signing.crt"),
        ("image/tag", "latest"),
        ("image/pullPolicy", "Sometimes"),
        ("image/worker/digest", "sha256:abc"),
        ("image/worker/tag", "1"),
        ("fullnameOverride", "1-forgewatch"),
        ("env/OTEL_TRACES_SAMPLER_ARG", 0.5),
        ("settings/detector/max_batch_item", 3),
        ("settings/detector/max_batch_items", 0),
        ("settings/detector/max_batch_items", "64"),
        ("settings/detector/transactional_id", "mine"),
        ("settings/detector/metrics_port", 80),
        ("settings/ingest/sasl_password", "hunter2"),
        ("settings/ingest/topic_prefix", "a/b"),
        ("settings/memory/database_url", "sqlite://"),
        ("settings/updater/device", "tpu"),
        ("settings/deploy/health_urls", ["http://127.0.0.1"]),
        ("settings/process/log_level", "loud"),
        ("settings/detectors", {}),
        ("detector/replicas", -1),
        ("detector/replica", 2),
        ("detector/maxUnavailable", "half"),
        ("detector/autoscaling/lagThreshold", 0),
        ("detector/autoscaling/targetCPUPercent", 300),
        ("detector/modelStoreSize", "4 GB"),
        ("detector/resources/requests/memory", "1GB"),
        ("detector/resources/request", {}),
        ("detector/torchserve/gpu/count", "1"),
        ("detector/torchserve/gpu/resource", "gpu"),
        ("detector/tolerations", [{"effect": "NoWay"}]),
        ("detector/nodeSelector", {"zone": 1}),
        ("memory/index/size", "big"),
        ("updater/run/terminationGracePeriodSeconds", 0),
        ("updater/run/checkpoints/claim", "mine"),
        ("deploy/replicas", 2),
        ("deploy/service/type", "ExternalName"),
        ("deploy/ingress/host", "https://forgewatch.example"),
        ("deploy/httpRoute/parentRefs", [{"namespace": "gateways"}]),
        ("networkPolicy/metricsFrom", [{}]),
        ("networkPolicy/extraEgress", [{"port": 4317}]),
        ("monitoring/podMonitors/interval", "often"),
        ("monitoring/serviceMonitors", {}),
        ("postgresql", {"enabled": True}),
        ("enabled", False),
        ("podSecurityContext/runAsUser", 0),
        ("podSecurityContext/privileged", True),
    ],
)
def test_a_value_that_the_schema_does_not_have_is_refused_by_its_name(
    refusal: Refusal, path: str, value: Any
) -> None:
    said = refusal(nested(path, value))
    assert "schema" in said
    assert all(name in said for name in path.split("/")[-2:]), said


def test_an_annotation_whose_name_is_longer_than_it_may_be_is_refused_by_it(refusal: Refusal) -> None:
    name = "x" * 64
    assert name in refusal(nested("deploy/service/annotations", {name: "y"}))


@pytest.mark.parametrize(
    ("over", "named", "scenario"),
    [
        ({"image": {"registry": ""}}, "image.registry is missing", "minimal"),
        ({"kafka": {"bootstrapServers": ""}}, "kafka.bootstrapServers is missing", "minimal"),
        ({"database": {"secret": ""}}, "database.secret is missing", "minimal"),
        ({"objectStore": {"cropsUrl": ""}}, "objectStore.cropsUrl is missing", "minimal"),
        ({"objectStore": {"artifactsUrl": ""}}, "objectStore.artifactsUrl is missing", "minimal"),
        ({"deployToken": {"secret": ""}}, "deployToken.secret is missing", "minimal"),
        ({"webhooks": {"secret": "hooks"}}, "settings.deploy.webhook_hosts is missing", "minimal"),
        ({"signing": {"secret": ""}}, "signing.secret is missing", "minimal"),
        ({"signing": {"enabled": False}}, "signing.secret is forgewatch-signing, but", "minimal"),
        ({"deployToken": {"updaterKey": ""}}, "deployToken.updaterKey is missing", "minimal"),
        ({"deployToken": {"detectorKey": "token"}}, "deployToken.detectorKey is token, which is", "minimal"),
        ({"deployToken": {"updaterKey": "detector"}}, "deployToken.updaterKey is detector, which", "minimal"),
        (
            {"env": {"FORGEWATCH_DETECTOR_GROUP_ID": "x"}},
            "env.FORGEWATCH_DETECTOR_GROUP_ID is a setting",
            "minimal",
        ),
        ({"env": {"AWS_SECRET_ACCESS_KEY": "x"}}, "env.AWS_SECRET_ACCESS_KEY is what the chart", "minimal"),
        (
            {"kafka": {"saslSecret": ""}},
            "kafka.saslSecret is missing: kafka.securityProtocol is SASL_SSL",
            "tls-sasl",
        ),
        ({"kafka": {"saslMechanism": ""}}, "kafka.saslMechanism is missing", "tls-sasl"),
        ({"kafka": {"tlsSecret": ""}}, "kafka.clientCertificate is true, but kafka.tlsSecret", "tls-sasl"),
        (
            {"kafka": {"saslSecret": "user"}},
            "kafka.saslSecret is user, but kafka.securityProtocol is PLAIN",
            "minimal",
        ),
        ({"kafka": {"saslMechanism": "PLAIN"}}, "kafka.saslMechanism is PLAIN, but", "minimal"),
        (
            {"kafka": {"tlsSecret": "tls"}},
            "kafka.tlsSecret is tls, but kafka.securityProtocol is PLAIN",
            "minimal",
        ),
        (
            {"kafka": {"keyPasswordKey": "p"}},
            "kafka.keyPasswordKey is p, but kafka.clientCertificate",
            "minimal",
        ),
        (
            {"kafka": {"partitions": 23}},
            "detector.autoscaling.maxReplicas is 24, above kafka.partitions, 23",
            "production",
        ),
        (
            {"detector": {"autoscaling": {"minReplicas": 25}}},
            "detector.autoscaling.minReplicas is 25",
            "production",
        ),
        ({"detector": {"replicas": 5}}, "detector.replicas is 5, above kafka.partitions, 4", "minimal"),
        ({"memory": {"replicas": 5}}, "memory.replicas is 5, above kafka.partitions, 4", "minimal"),
        (
            {"objectStore": {"caKey": "ca.crt"}},
            "objectStore.caKey is ca.crt, but objectStore.secret",
            "minimal",
        ),
        ({"webhooks": {"caKey": "ca.crt"}}, "webhooks.caKey is ca.crt, but webhooks.secret", "minimal"),
        (
            {"networkPolicy": {"apiFrom": []}},
            "networkPolicy.apiFrom is empty: deploy.ingress.enabled is true",
            "production",
        ),
        (
            {"networkPolicy": {"apiFrom": []}, "deploy": {"ingress": {"enabled": False}}},
            "networkPolicy.apiFrom is empty: deploy.httpRoute.enabled is true",
            "production",
        ),
        ({"deploy": {"service": {"type": "NodePort"}}}, "deploy.service.type is NodePort", "minimal"),
        ({"deploy": {"ingress": {"host": ""}}}, "deploy.ingress.host is missing", "production"),
        ({"deploy": {"ingress": {"tlsSecret": ""}}}, "deploy.ingress.tlsSecret is missing", "production"),
        ({"deploy": {"httpRoute": {"parentRefs": []}}}, "deploy.httpRoute.parentRefs is empty", "production"),
    ],
)
def test_values_that_do_not_go_together_are_refused_by_their_names(
    refusal: Refusal, over: Any, named: str, scenario: str
) -> None:
    assert named in refusal(over, scenario)


def test_all_that_is_missing_is_told_at_once(each_helm: str, chart: Any) -> None:
    done = chart.run(each_helm, "template", "w", str(chart.path))
    missing = (
        "image.registry",
        "kafka.bootstrapServers",
        "database.secret",
        "objectStore.cropsUrl",
        "objectStore.artifactsUrl",
        "deployToken.secret",
        "deployToken.detectorKey",
        "deployToken.updaterKey",
        "signing.secret",
    )
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

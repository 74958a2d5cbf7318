"""The chart comes up under `restricted`, takes the release that ships, and a photograph gets its verdict."""

import json
from pathlib import Path

import pytest
import skimage

from deploy.demo.release_zero import copy_shipped
from detector.release.artifact import EVALUATION
from detector.release.signature import sign
from updater.candidate.gates import make_gates
from updater.deploy_client import DeployClient, candidate_of
from updater.records import Evaluation
from updater.settings import UpdaterSettings

pytestmark = pytest.mark.cluster

PHOTOGRAPH = Path(skimage.__file__).parent / "data" / "coffee.png"


def test_all_but_the_detector_is_ready_before_there_is_a_release(chart):
    for component in ("deploy", "memory", "updater"):
        (pod,) = chart.pods(component)
        assert chart.ready(component), pod["status"]
    assert not chart.pods("detector")


def test_the_namespace_refuses_what_is_not_restricted(chart):
    container = {"name": "c", "image": "localhost/pause:1", "securityContext": {"privileged": True}}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [container]}}
    said = chart.kubectl("apply", "-f", "-", stdin=json.dumps(pod), check=False)
    assert 'violates PodSecurity "restricted' in said


def test_each_pod_is_closed_by_a_network_policy_that_the_api_took(chart):
    """That they are kept is the business of a network plugin, which this cluster has not."""
    policies = [policy["spec"] for policy in chart.kubectl.get("networkpolicies")["items"]]
    closing = [policy for policy in policies if {"Ingress", "Egress"} <= set(policy["policyTypes"])]
    for component in ("deploy", "memory", "updater"):
        (pod,) = chart.pods(component)
        labels = pod["metadata"]["labels"].items()
        assert any(policy["podSelector"]["matchLabels"].items() <= labels for policy in closing)


def test_the_release_that_ships_judges_a_photograph(chart, stream, operator, secrets, signer, tmp_path):
    artifact = copy_shipped(tmp_path / "release")
    sign(artifact, signer.key)
    evaluation = Evaluation.model_validate_json((artifact.folder / EVALUATION).read_bytes())
    deploy_url, its_own = operator.settings["FORGEWATCH_DEPLOY_URL"], secrets["deploy-token"]["updater"]
    bounds = UpdaterSettings(deploy_url=deploy_url, deploy_token=its_own)
    with DeployClient(bounds) as updater:
        updater.put(artifact)
        updater.propose(candidate_of(artifact, 0, make_gates(bounds, evaluation)))
    assert operator.approve_newest() == artifact.digest
    chart.upgrade("detector.replicas=1")
    position = operator.ask("send", str(PHOTOGRAPH))["id"]
    verdict = chart.kubectl.until("a verdict", lambda: stream.traffic.verdicts.get(position))
    print(f"  {PHOTOGRAPH.name}: {verdict.label}, release {verdict.release[:12]}")
    assert verdict.release == artifact.digest

"""Every scenario lints and renders, the same with both majors of helm, as Kubernetes' schemas have it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.slow


def test_each_scenario_passes_the_strict_lint(each_helm: str, chart: Any, scenario: str) -> None:
    done = chart.run(each_helm, "lint", "--strict", str(chart.path), "-f", str(chart.values(scenario)))
    assert done.returncode == 0, done.stdout + done.stderr


def test_both_majors_of_helm_render_the_same(each_helm: str, chart: Any, scenario: str, render: Any) -> None:
    done = chart.run(each_helm, *chart.template(scenario))
    assert done.returncode == 0, done.stderr
    assert [each for each in yaml.safe_load_all(done.stdout) if each] == render(scenario).objects


def test_each_object_is_as_its_schema_has_it(
    kubeconform: Callable[..., str], render: Any, scenario: str
) -> None:
    assert kubeconform(render(scenario).objects) == ""


def test_the_schemas_refuse_a_field_that_is_none_be_it_of_a_custom_resource(
    kubeconform: Callable[..., str], render: Any
) -> None:
    for kind in ("Deployment", "ScaledObject", "PodMonitor", "HTTPRoute", "PrometheusRule"):
        (found, *_) = render("production").of(kind)
        assert "replicass" in kubeconform([found | {"spec": found["spec"] | {"replicass": 1}}]), kind


def test_no_two_objects_have_one_name(render: Any, scenario: str) -> None:
    names = [(each["kind"], each["metadata"]["name"]) for each in render(scenario).objects]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", ["w", "forgewatch", "a" * 53])
def test_names_fit_however_long_the_releases_name_is(render: Any, name: str) -> None:
    for each in render("production", name=name).objects:
        # A Job's name is a label of its pods, a StatefulSet's is followed by a hash there.
        assert len(each["metadata"]["name"]) <= 52, each["metadata"]["name"]
        assert each["metadata"]["namespace"] == "media"
        assert all(len(value) <= 63 for value in each["metadata"]["labels"].values())


def scalars(part: Any) -> Iterator[Any]:
    """Every key and every value of an object."""
    for inner in [*part, *part.values()] if isinstance(part, dict) else part:
        yield from scalars(inner) if isinstance(inner, dict | list) else [inner]


def test_text_that_yaml_takes_for_a_number_or_a_truth_stays_text(render: Any) -> None:
    over = {
        "fullnameOverride": "true",
        "env": {"NO": "x"},
        "settings": {"detector": {"group_id": "123457"}, "ingest": {"topic_prefix": "123458"}},
        "monitoring": {"dashboards": {"label": "on"}},
    }
    found = render("production", over=over, name="4711", namespace="815")
    numbers = {each for each in scalars(found.objects) if isinstance(each, int)}
    assert numbers & {4711, 815, 123457, 123458} == set()
    assert {each["metadata"]["name"] for each in found.of("ServiceAccount")} == {"true", "true-updater"}
    assert found.pods()["memory"]["spec"]["serviceAccountName"] == "true"
    assert all("NO" in [variable["name"] for variable in each["env"]] for _, each in found.containers())
    assert all(each["metadata"]["labels"]["on"] == "1" for each in found.of("ConfigMap"))


def test_an_annotation_may_be_as_long_as_those_of_cloud_load_balancers(render: Any) -> None:
    asked = {"service.beta.kubernetes.io/aws-load-balancer-cross-zone-load-balancing-enabled": "true"}
    found = render(over={"deploy": {"service": {"annotations": asked}}})
    assert found.one("Service", "deploy")["metadata"]["annotations"] == asked


def test_two_releases_in_one_namespace_share_no_name_and_select_no_pod_of_one_another(render: Any) -> None:
    one, other = render("production", name="one"), render("production", name="other")
    names = [{(each["kind"], each["metadata"]["name"]) for each in found.objects} for found in (one, other)]
    assert names[0] & names[1] == set()
    labels = [template["metadata"]["labels"] for template in other.pods().values()]
    for selector in selectors(one):
        assert not any(selector.items() <= each.items() for each in labels)


def selectors(manifests: Any) -> list[dict[str, str]]:
    found = [each["spec"]["selector"] for each in manifests.of("Service")]
    for kind in ("Deployment", "StatefulSet", "PodDisruptionBudget", "PodMonitor"):
        found += [each["spec"]["selector"]["matchLabels"] for each in manifests.of(kind)]
    return found + [each["spec"]["podSelector"]["matchLabels"] for each in manifests.of("NetworkPolicy")]


def test_each_selector_finds_pods_of_its_release(render: Any, scenario: str) -> None:
    found = render(scenario)
    labels = [template["metadata"]["labels"] for template in found.pods().values()]
    for selector in selectors(found):
        assert any(selector.items() <= each.items() for each in labels), selector


def test_custom_resources_are_only_made_where_their_api_is(render: Any, chart: Any) -> None:
    custom = {"ScaledObject", "TriggerAuthentication", "PodMonitor", "HTTPRoute"}
    if any(chart.path.glob("rules/*.yaml")):
        custom.add("PrometheusRule")
    with_all, with_none = render("production"), render("production", apis=())
    assert custom <= {each["kind"] for each in with_all.objects}
    assert custom.isdisjoint(each["kind"] for each in with_none.objects)
    assert len(with_none.of("HorizontalPodAutoscaler")) == 1
    assert with_all.of("HorizontalPodAutoscaler") == []


def test_nothing_but_what_the_chart_is_for_is_installed(render: Any, scenario: str) -> None:
    found = render(scenario)
    assert found.of("Secret") == []
    assert {
        each["image"].split("@")[0].rpartition(":")[0].rpartition("forgewatch/")[2]
        for _, each in found.containers()
    } == {
        "worker",
        "torchserve",
        "updater",
    }


def test_uninstalling_leaves_what_was_learnt(render: Any) -> None:
    """Crops, rows, artifacts and topics lie outside; of the volumes, Helm keeps both."""
    found = render()
    claims = found.of("PersistentVolumeClaim")
    assert [each["metadata"]["annotations"]["helm.sh/hook-delete-policy"] for each in claims] == ["never"]
    assert found.one("StatefulSet", "memory")["spec"].get("persistentVolumeClaimRetentionPolicy") is None
    hooks = [each["metadata"].get("annotations", {}).get("helm.sh/hook", "") for each in found.objects]
    assert not any("delete" in hook for hook in hooks)

"""Every scenario lints and renders, the same with both majors of helm, as Kubernetes' schemas have it."""

import copy
import json
import re
import subprocess

import pytest
import yaml
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.slow


def test_each_scenario_passes_the_strict_lint(each_helm, chart, scenario):
    done = chart.run(each_helm, "lint", "--strict", str(chart.path), "-f", str(chart.values(scenario)))
    assert done.returncode == 0, done.stdout + done.stderr


def test_both_majors_of_helm_render_the_same(each_helm, chart, scenario, render):
    done = chart.run(each_helm, *chart.template(scenario))
    assert done.returncode == 0, done.stderr
    assert [each for each in yaml.safe_load_all(done.stdout) if each] == render(scenario).objects


def test_each_object_is_as_its_schema_has_it(kubeconform, render, scenario):
    assert kubeconform(render(scenario).objects) == ""


def test_the_schemas_refuse_a_field_that_is_none_be_it_of_a_custom_resource(kubeconform, render):
    for kind in ("Deployment", "ScaledObject", "PodMonitor", "HTTPRoute", "PrometheusRule"):
        (found, *_) = render("production").of(kind)
        assert "replicass" in kubeconform([found | {"spec": found["spec"] | {"replicass": 1}}]), kind


def test_no_two_objects_have_one_name(render, scenario):
    names = [(each["kind"], each["metadata"]["name"]) for each in render(scenario).objects]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", ["w", "forgewatch", "a" * 53])
def test_names_fit_however_long_the_releases_name_is(render, name):
    for each in render("production", name=name).objects:
        # A Job's name is a label of its pods, a StatefulSet's is followed by a hash there.
        assert len(each["metadata"]["name"]) <= 52, each["metadata"]["name"]
        assert each["metadata"]["namespace"] == "media"
        assert all(len(value) <= 63 for value in each["metadata"]["labels"].values())


def scalars(part):
    """Every key and every value of an object."""
    for inner in [*part, *part.values()] if isinstance(part, dict) else part:
        yield from scalars(inner) if isinstance(inner, dict | list) else [inner]


def test_text_that_yaml_takes_for_a_number_or_a_truth_stays_text(render):
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


def test_an_annotation_may_be_as_long_as_those_of_cloud_load_balancers(render):
    asked = {"service.beta.kubernetes.io/aws-load-balancer-cross-zone-load-balancing-enabled": "true"}
    found = render(over={"deploy": {"service": {"annotations": asked}}})
    assert found.one("Service", "deploy")["metadata"]["annotations"] == asked


def test_two_releases_in_one_namespace_share_no_name_and_select_no_pod_of_one_another(render):
    one, other = render("production", name="one"), render("production", name="other")
    names = [{(each["kind"], each["metadata"]["name"]) for each in found.objects} for found in (one, other)]
    assert names[0] & names[1] == set()
    labels = [template["metadata"]["labels"] for template in other.pods().values()]
    for selector in selectors(one):
        assert not any(selector.items() <= each.items() for each in labels)


def selectors(manifests):
    found = [each["spec"]["selector"] for each in manifests.of("Service")]
    for kind in ("Deployment", "StatefulSet", "PodDisruptionBudget", "PodMonitor"):
        found += [each["spec"]["selector"]["matchLabels"] for each in manifests.of(kind)]
    return found + [each["spec"]["podSelector"]["matchLabels"] for each in manifests.of("NetworkPolicy")]


def test_each_selector_finds_pods_of_its_release(render, scenario):
    found = render(scenario)
    labels = [template["metadata"]["labels"] for template in found.pods().values()]
    for selector in selectors(found):
        assert any(selector.items() <= each.items() for each in labels), selector


def test_custom_resources_are_only_made_where_their_api_is(render, chart):
    custom = {"ScaledObject", "TriggerAuthentication", "PodMonitor", "HTTPRoute"}
    if any(chart.path.glob("rules/*.yaml")):
        custom.add("PrometheusRule")
    with_all, with_none = render("production"), render("production", apis=())
    assert custom <= {each["kind"] for each in with_all.objects}
    assert custom.isdisjoint(each["kind"] for each in with_none.objects)
    assert len(with_none.of("HorizontalPodAutoscaler")) == 1
    assert with_all.of("HorizontalPodAutoscaler") == []


def test_nothing_but_what_the_chart_is_for_is_installed(render, scenario):
    found = render(scenario)
    assert found.of("Secret") == []
    assert {
        each["image"].split("@")[0].rpartition(":")[0].rpartition("forgewatch/")[2]
        for _, each in found.containers()
    } == {"worker", "torchserve", "updater"}


def test_uninstalling_leaves_what_was_learnt(render):
    """Crops, rows, artifacts and topics lie outside; of the volumes, Helm keeps both."""
    found = render()
    claims = found.of("PersistentVolumeClaim")
    assert [each["metadata"]["annotations"]["helm.sh/hook-delete-policy"] for each in claims] == ["never"]
    assert found.one("StatefulSet", "memory")["spec"].get("persistentVolumeClaimRetentionPolicy") is None
    hooks = [each["metadata"].get("annotations", {}).get("helm.sh/hook", "") for each in found.objects]
    assert not any("delete" in hook for hook in hooks)


WARNING = 5
"""The grade of kube-score above which nothing is critical."""
NOT_KUBE_SCORE = {
    "container-image-pull-policy": "a tag is not moved, and a node that has the image needs no registry"
}


@pytest.fixture
def kube_score(tool):
    if (program := tool("kube-score")) is None:
        pytest.skip("kube-score is not installed; `make chart-check` brings it")
    ignored = [word for check in NOT_KUBE_SCORE for word in ("--ignore-test", check)]
    # No limit of processor time: it would throttle a batch while cores are idle.
    command = [program, "score", "--output-format", "json", "--ignore-container-cpu-limit", *ignored, "-"]

    def score(objects):
        given = yaml.safe_dump_all(objects)
        said = subprocess.run(command, input=given, capture_output=True, text=True, check=False).stdout
        return [
            f"{each['object_name']}: {check['check']['id']}: {comment['summary']}"
            for each in json.loads(said)
            for check in each["checks"] or []
            if check["grade"] < WARNING and not check["skipped"]
            for comment in check["comments"] or [{"summary": ""}]
        ]

    return score


def test_kube_score_finds_nothing_critical(kube_score, render, scenario):
    assert kube_score(render(scenario).objects) == []


def test_kube_score_would_find_a_root_that_can_be_written(kube_score, render):
    objects = copy.deepcopy(render().objects)
    deployment = next(each for each in objects if each["kind"] == "Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"] = (
        False
    )
    assert [found.split(": ")[1] for found in kube_score(objects)] == [
        "container-security-context-readonlyrootfilesystem"
    ]


LEFT_OUT = ("global", "settings")
"""The settings have a test of their own, which gives each of them."""


def of_schema(part, root, defaults=False):
    """Values that a part of the chart's schema takes; of an object, any of its members.

    defaults: whether what it requires has a default and so may be left out.
    """
    if "$ref" in part:
        return of_schema(root["definitions"][part["$ref"].rpartition("/")[2]], root)
    if "anyOf" in part:
        return st.one_of([of_schema(each, root) for each in part["anyOf"]])
    if isinstance(part.get("type"), list):
        return st.one_of([of_schema(part | {"type": each}, root, defaults) for each in part["type"]])
    if "enum" in part:
        return st.sampled_from(part["enum"])
    match part["type"]:
        case "null":
            return st.none()
        case "boolean":
            return st.booleans()
        case "integer":
            return st.integers(part.get("minimum", 0), part.get("maximum", 10**7))
        case "number":
            return st.floats(0.01, 1e7, allow_nan=False)
        case "array":
            return st.lists(of_schema(part["items"], root), max_size=3)
        case "string":
            return text(part)
    if "properties" in part:
        members = {name: of_schema(each, root, defaults) for name, each in part["properties"].items()}
        needed = {name: members.pop(name) for name in part.get("required", []) if not defaults}
        least = part.get("minProperties", 0)
        return st.fixed_dictionaries(needed, optional=members).filter(lambda found: len(found) >= least)
    if "additionalProperties" in part:
        names = text(part.get("propertyNames", {}))
        return st.dictionaries(names, of_schema(part["additionalProperties"], root), max_size=3)
    return st.just({})


def text(part):
    pattern = part.get("pattern", "^[ -~äß]*$")
    refused = part.get("not", {})
    return st.from_regex(pattern, fullmatch=True).filter(
        lambda found: (
            found.isascii() == ("pattern" in part or found.isascii())
            and "\n" not in found
            and len(found) <= part.get("maxLength", 1000)
            and found not in refused.get("enum", [])
            and not found.startswith(("FORGEWATCH_", "AWS_", "POD_NAME"))
        )
    )


@pytest.fixture(scope="module")
def schemas_say(tool, request):
    """What kubeconform says, where it is installed; without it the objects only have to be readable."""
    return request.getfixturevalue("kubeconform") if tool("kubeconform") else lambda objects: ""


@settings(
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # to shrink takes an hour of rendering
)
@given(data=st.data())
def test_whatever_the_schema_takes_renders_or_is_refused_in_a_line(data, helm, chart, schemas_say):
    root = json.loads((chart.path / "values.schema.json").read_text())
    room = data.draw(st.sampled_from([name for name in root["properties"] if name not in LEFT_OUT]))
    over = {room: data.draw(of_schema(root["properties"][room], root, defaults=True))}
    done = chart.run(helm, *chart.template("minimal"), values=over)
    event(f"{room}: {'refused' if done.returncode else 'rendered'}")
    if done.returncode != 0:
        refused = done.stderr.partition("wrong values:\n")[2]
        lines = re.findall(r"^- ([a-zA-Z]+)\..*$", refused, re.MULTILINE)
        assert lines, done.stderr
        assert set(lines) <= set(root["properties"])
        assert f"{room}." in refused  # the value that was changed, or the one that it needs, names both
        return
    objects = [each for each in yaml.load_all(done.stdout, yaml.CSafeLoader) if each]
    assert {"Deployment", "StatefulSet", "CronJob", "Service"} <= {each["kind"] for each in objects}
    assert schemas_say(objects) == ""

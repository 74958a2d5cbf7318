"""The chart rendered by the helm that is installed: the tests of what it makes, without a cluster."""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

SCENARIOS = ("minimal", "production", "gpu", "tls-sasl", "existing-secrets")
KUBERNETES = "1.34.0"
TOOLS = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "forgewatch" / "kubernetes"
"""Where `make chart-check` puts what it needs."""
EVERY_API = ("keda.sh/v1alpha1", "monitoring.coreos.com/v1", "gateway.networking.k8s.io/v1")

Object = dict[str, Any]


@dataclass(frozen=True)
class Manifests:
    """The objects that the chart makes of some values."""

    objects: list[Object]

    def of(self, kind):
        return [each for each in self.objects if each["kind"] == kind]

    def one(self, kind, component):
        (found,) = [each for each in self.of(kind) if component_of(each) == component]
        return found

    def pods(self):
        templates = {}
        for each in self.objects:
            spec = each.get("spec", {})
            if template := spec.get("jobTemplate", {}).get("spec", spec).get("template"):
                templates[component_of(each)] = template
        return templates

    def containers(self):
        for component, template in self.pods().items():
            for each in [*template["spec"].get("initContainers", []), *template["spec"]["containers"]]:
                yield f"{component}/{each['name']}", each

    def container(self, name):
        return dict(self.containers())[name]


def component_of(each):
    return str(each["metadata"]["labels"]["app.kubernetes.io/component"])


def find_tool(name):
    """Where a tool lies: on the path, or where `make chart-check` puts it."""
    return shutil.which(name) or shutil.which(name, path=str(TOOLS / "bin"))


@pytest.fixture(scope="session")
def tool():
    return find_tool


class Chart:
    """The chart, and how helm is asked about it."""

    path = Path(__file__).parents[2] / "helm" / "forgewatch"

    def values(self, scenario):
        return self.path / "ci" / f"{scenario}-values.yaml"

    def run(self, helm, *arguments, values=None, kubernetes=KUBERNETES):
        """Run helm for a cluster of a version, with more values over those of a file."""
        given = ["-f", "-"] if values is not None else []
        return subprocess.run(
            [helm, *arguments, "--kube-version", kubernetes, *given],
            input=json.dumps(values),
            capture_output=True,
            text=True,
            check=False,
        )

    def template(self, scenario, name="watch", apis=EVERY_API, namespace="media", path=path):
        """The arguments of `helm template` for a scenario."""
        available = [word for api in apis for word in ("--api-versions", api)]
        place = [name, str(path), "--namespace", namespace]
        return ["template", *place, *available, "-f", str(self.values(scenario))]


@pytest.fixture(scope="session")
def chart():
    return Chart()


@pytest.fixture(scope="session", params=["helm", "helm3"])
def each_helm(request):
    if (found := find_tool(request.param)) is None:
        pytest.skip(f"{request.param} is not installed; `make chart-check` brings it")
    return found


@pytest.fixture(scope="session")
def helm():
    if (found := find_tool("helm") or find_tool("helm3")) is None:
        pytest.skip("helm is not installed; `make chart-check` brings it")
    return found


@pytest.fixture(scope="session")
def render(helm, chart):
    """Give the objects of the chart, with some values over those of a scenario and every API at hand.

    The same are given again where the same is asked for: who changes one copies it first.
    """

    @cache
    def rendered(scenario, over, name, apis, namespace):
        done = chart.run(helm, *chart.template(scenario, name, apis, namespace), values=json.loads(over))
        assert done.returncode == 0, done.stderr
        return Manifests([found for found in yaml.load_all(done.stdout, yaml.CSafeLoader) if found])

    def render(scenario="minimal", over=None, name="watch", apis=EVERY_API, namespace="media"):
        return rendered(scenario, json.dumps(over or {}), name, apis, namespace)

    return render


@pytest.fixture(params=SCENARIOS)
def scenario(request):
    """Each of the scenarios below helm/forgewatch/ci."""
    return str(request.param)


@pytest.fixture(scope="session")
def refusal(each_helm, chart):

    def refusal(over, scenario="minimal"):
        done = chart.run(each_helm, *chart.template(scenario), values=over)
        assert done.returncode != 0, f"taken: {over}"
        return done.stderr

    return refusal


@pytest.fixture(scope="session")
def kubeconform():
    """Give what kubeconform says of objects by the schemas of their kinds: nothing if all is well."""
    program, schemas = find_tool("kubeconform"), TOOLS / "schemas"
    if program is None or not schemas.is_dir():
        pytest.skip("kubeconform or its schemas are not there; `make chart-check` brings them")

    def check(objects):
        done = subprocess.run(
            [
                program,
                "-strict",
                "-schema-location",
                f"{schemas}/{{{{.ResourceKind}}}}{{{{.KindSuffix}}}}.json",
                "-",
            ],
            input="\n---\n".join(map(json.dumps, objects)),
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout + done.stderr

    return check


CHART = Path(__file__).parents[2] / "helm" / "forgewatch"


@pytest.fixture(scope="session")
def dashboards():
    """Each dashboard as it lies in the chart, by its name."""
    return {path.stem: json.loads(path.read_text()) for path in sorted((CHART / "dashboards").glob("*.json"))}


@pytest.fixture(scope="session")
def rules():
    """Every rule of the chart: those that record, and the alerts."""
    texts = [path.read_text() for path in sorted((CHART / "rules").glob("*.yaml"))]
    return [rule for text in texts for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]

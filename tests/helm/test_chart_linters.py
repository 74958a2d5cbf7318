"""Two linters of security find nothing in any scenario; checks that are left out have a reason here."""

import copy
import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.slow

Tool = Callable[[str], str | None]

NOT_KUBE_LINTER = {
    "default-service-account": "a hook runs before the chart's account is there; its pod has no token",
    "no-liveness-probe": "neither a run nor the hook serves anything; both end by themselves",
    "no-readiness-probe": "neither a run nor the hook serves anything; both end by themselves",
    "restart-policy": "podFailurePolicy demands Never, and a Job makes another pod by itself",
}
WARNING = 5
"""The grade of kube-score above which nothing is critical."""
NOT_KUBE_SCORE = {
    "container-image-pull-policy": "a tag is not moved, and a node that has the image needs no registry",
}


@pytest.fixture
def rendered(render: Any, scenario: str) -> str:
    return yaml.safe_dump_all(render(scenario).objects)


def test_kube_linter_finds_nothing(tool: Tool, rendered: str) -> None:
    if (program := tool("kube-linter")) is None:
        pytest.skip("kube-linter is not installed; `make chart-check` brings it")
    excluded = [word for check in NOT_KUBE_LINTER for word in ("--exclude", check)]
    command = [program, "lint", "--format", "json", "--add-all-built-in", *excluded, "-"]
    said = subprocess.run(command, input=rendered, capture_output=True, text=True, check=False).stdout
    found = [
        f"{each['Check']}: {each['Object']['K8sObject']['Name']}: {each['Diagnostic']['Message']}"
        for each in json.loads(said)["Reports"] or []
    ]
    assert found == []


@pytest.fixture
def kube_score(tool: Tool) -> Callable[[list[Any]], list[str]]:
    """Give what kube-score calls critical in objects."""
    if (program := tool("kube-score")) is None:
        pytest.skip("kube-score is not installed; `make chart-check` brings it")
    ignored = [word for check in NOT_KUBE_SCORE for word in ("--ignore-test", check)]
    # No limit of processor time: it would throttle a batch while cores are idle.
    command = [program, "score", "--output-format", "json", "--ignore-container-cpu-limit", *ignored, "-"]

    def score(objects: list[Any]) -> list[str]:
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


def test_kube_score_finds_nothing_critical(kube_score: Any, render: Any, scenario: str) -> None:
    assert kube_score(render(scenario).objects) == []


def test_kube_score_would_find_a_root_that_can_be_written(kube_score: Any, render: Any) -> None:
    objects = copy.deepcopy(render().objects)
    deployment = next(each for each in objects if each["kind"] == "Deployment")
    deployment["spec"]["template"]["spec"]["containers"][0]["securityContext"]["readOnlyRootFilesystem"] = (
        False
    )
    assert [found.split(": ")[1] for found in kube_score(objects)] == [
        "container-security-context-readonlyrootfilesystem"
    ]

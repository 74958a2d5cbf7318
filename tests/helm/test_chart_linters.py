"""kube-score finds nothing critical in any scenario; a check that is left out has a reason here."""

import copy
import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.slow

Tool = Callable[[str], str | None]

WARNING = 5
"""The grade of kube-score above which nothing is critical."""
NOT_KUBE_SCORE = {
    "container-image-pull-policy": "a tag is not moved, and a node that has the image needs no registry",
}


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

"""Values that are in no one's hands: what the schema takes renders, or is refused by a line of the chart."""

import json
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st

pytestmark = pytest.mark.slow

LEFT_OUT = ("global", "settings")
"""The settings have a test of their own, which gives each of them."""


def of_schema(part: dict[str, Any], root: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that a part of the chart's schema takes; of an object, any of its members."""
    if "$ref" in part:
        return of_schema(root["definitions"][part["$ref"].rpartition("/")[2]], root)
    if "anyOf" in part:
        return st.one_of([of_schema(each, root) for each in part["anyOf"]])
    if "enum" in part:
        return st.sampled_from(part["enum"])
    match part["type"]:
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
        members = {name: of_schema(each, root) for name, each in part["properties"].items()}
        needed = {name: members.pop(name) for name in part.get("required", [])}
        least = part.get("minProperties", 0)
        return st.fixed_dictionaries(needed, optional=members).filter(lambda found: len(found) >= least)
    if "additionalProperties" in part:
        names = text(part.get("propertyNames", {}))
        return st.dictionaries(names, of_schema(part["additionalProperties"], root), max_size=3)
    return st.just({})


def text(part: dict[str, Any]) -> st.SearchStrategy[str]:
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
def schemas_say(tool: Callable[[str], str | None], request: pytest.FixtureRequest) -> Any:
    """What kubeconform says, where it is installed; without it the objects only have to be readable."""
    return request.getfixturevalue("kubeconform") if tool("kubeconform") else lambda objects: ""


@settings(
    max_examples=40,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # to shrink takes an hour of rendering
)
@given(data=st.data())
def test_whatever_the_schema_takes_renders_or_is_refused_in_a_line(
    data: st.DataObject, helm: str, chart: Any, schemas_say: Callable[..., str]
) -> None:
    root = json.loads((chart.path / "values.schema.json").read_text())
    room = data.draw(st.sampled_from([name for name in root["properties"] if name not in LEFT_OUT]))
    over = {room: data.draw(of_schema(root["properties"][room], root))}
    done = chart.run(helm, *chart.template("minimal"), values=over)
    event(f"{room}: {'refused' if done.returncode else 'rendered'}")
    if done.returncode != 0:
        refused = done.stderr.partition("wrong values:\n")[2]
        assert refused.startswith("- "), done.stderr
        assert f"- {room}." in refused or "kafka." in refused
        return
    objects = [each for each in yaml.load_all(done.stdout, yaml.CSafeLoader) if each]
    assert {"Deployment", "StatefulSet", "CronJob", "Service"} <= {each["kind"] for each in objects}
    assert schemas_say(objects) == ""

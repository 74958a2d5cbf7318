"""Each value of the chart has a comment, a schema and a line in the README; as a script, this writes both."""

import ast
import hashlib
import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from deploy.environment import SETTINGS
from ingest.process.frame import ProcessSettings

CHART = Path(__file__).parents[2] / "helm" / "forgewatch"
BEGIN, END = "<!-- values -->\n", "<!-- end of values -->\n"

DECIDED = {
    room: set(names.split())
    for room, names in {
        "ingest": "bootstrap_servers security_protocol sasl_mechanism sasl_username sasl_password "
        "ssl_cafile ssl_certfile ssl_keyfile ssl_password claim_check_dir",
        "detector": "transactional_id torchserve_management_url model_store_dir deploy_url "
        "deploy_token trusted_signers c2pa_trust_file",
        "memory": "database_url crops_url index_path",
        "updater": "deploy_url deploy_token database_url signing_key work_dir job_template",
        "deploy": "database_url token detector_token updater_token artifacts_url cache_dir webhooks "
        "webhook_ca webhook_secret",
    }.items()
}
"""Settings that another value decides, such as the name of a Secret: there is one place for each."""


ROOMS = {
    "process": ProcessSettings,
    **{str(kind.model_config["env_prefix"]).split("_")[1].lower(): kind for kind in SETTINGS},
}


def settings_schema(room):
    fields = ROOMS[room].model_json_schema()["properties"]
    given = {name: _field(field) for name, field in fields.items() if name not in DECIDED.get(room, set())}
    return {"type": "object", "additionalProperties": False, "properties": given}


def _field(field):
    (kind,) = [kind for kind in field.get("anyOf", [field]) if kind.get("type") != "null"]
    kept = {name: value for name, value in kind.items() if name not in ("title", "default", "format")}
    if kept["type"] == "integer" and "port" in field["title"].lower().split():
        kept["minimum"] = 1024  # a container of no privileges, and probes that must know the port
    return {"description": field["description"], **kept}


def schema():
    """The chart's schema with what is made of the code and of the comments written anew."""
    found = json.loads((CHART / "values.schema.json").read_text())
    for room in ROOMS:
        found["properties"]["settings"]["properties"][room] = settings_schema(room)
    for path, comment, _ in values():
        at = found
        for name in path:
            at = at.get("properties", {}).get(
                name, {}
            )  # what is behind a $ref is described once, there or not
        at["description"] = comment
    _require(yaml.safe_load((CHART / "values.yaml").read_text()), found)
    return found


def _require(given, part):
    """Name what may not be missing: `--reuse-values` brings an older chart's values without newer ones."""
    known = part["properties"]
    groups = {name for name, each in known.items() if each.get("type") == "object" and "properties" in each}
    nullable = {name for name, each in known.items() if "null" in each.get("type", ())}
    part["required"] = [name for name in given if (given[name] or name in groups) and name not in nullable]
    for name in sorted(groups & set(given)):
        _require(given[name], known[name])


def values():
    """Path, comment and default of each value; of a group that has no comment, of what is in it."""
    text = (CHART / "values.yaml").read_text()
    yield from _values((), yaml.compose(text), text.splitlines())


def _values(at, node, lines):
    for key, value in node.value:
        path, line = (*at, key.value), key.start_mark.line
        comment = []
        while line and lines[line - 1].strip().startswith("# "):
            line -= 1
            comment.insert(0, lines[line].strip().removeprefix("# "))
        if comment:
            yield path, " ".join(comment), yaml.safe_load(yaml.serialize(value))
        elif not isinstance(value, yaml.MappingNode):
            yield path, "", None
        parts = isinstance(value, yaml.MappingNode) and value.value and not value.flow_style
        if parts and path[-1] != "resources":
            yield from _values(path, value, lines)


def stamp():
    """The chart's version and a digest of its values' names and defaults."""
    values = json.dumps(yaml.safe_load((CHART / "values.yaml").read_text()), sort_keys=True)
    return f"{VERSION.search(_about())[1]} {hashlib.sha256(values.encode()).hexdigest()[:16]}"


VERSION = re.compile(r"^version: (\S+)$", re.MULTILINE)
STAMP = re.compile(r"(?<=^  forgewatch/values: ).*$", re.MULTILINE)


def _about():
    return (CHART / "Chart.yaml").read_text()


def table():
    """The README's table of values."""
    lines = ["| value | default | meaning |", "| --- | --- | --- |"]
    for path, comment, default in values():
        shown = "" if path[0] == "settings" and len(path) == 1 else f"`{json.dumps(default)}`"
        lines.append(f"| `{'.'.join(path)}` | {shown} | {comment} |")
    return "\n".join(lines) + "\n"


def test_each_value_has_a_comment():
    assert [".".join(path) for path, comment, _ in values() if not comment] == []


def test_the_schema_is_that_of_the_settings_classes_and_of_the_comments():
    assert json.loads((CHART / "values.schema.json").read_text()) == schema(), "run `make readme`"


def test_the_charts_version_rose_with_the_last_change_of_its_values():
    assert STAMP.findall(_about()) == [stamp()], "raise the version in Chart.yaml, then run `make readme`"


def test_the_readme_has_each_value_with_its_default():
    assert (CHART / "README.md").read_text().split(BEGIN)[1].split(END)[0] == table(), "run `make readme`"


def _objects(at, part):
    if isinstance(part, dict):
        if part.get("type") == "object":
            yield at, part
        for name, inner in part.items():
            yield from _objects(f"{at}.{name}", inner)


def test_no_object_of_the_schema_takes_what_it_does_not_know():
    """Maps of free names say what their values are; `global` and the kinds of affinity are not ours."""
    free = {
        "affinity.properties.nodeAffinity",
        "affinity.properties.podAffinity",
        "affinity.properties.podAntiAffinity",
    }
    loose = [
        at
        for at, part in _objects("", json.loads((CHART / "values.schema.json").read_text()))
        if "additionalProperties" not in part
    ]
    assert {at.removeprefix(".definitions.").removeprefix(".properties.") for at in loose} == free | {
        "global"
    }


def test_each_value_is_in_the_schema_and_each_of_the_schema_is_a_value():
    described = schema()
    assert sorted(_leaves(yaml.safe_load((CHART / "values.yaml").read_text()), described, described)) == []


def _leaves(given, part, root, at=""):
    part = root["definitions"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part
    if not isinstance(given, dict) or "properties" not in part or at.endswith("resources."):
        return
    known = set(part["properties"]) - {"global"}
    if not at.startswith("settings."):
        yield from (f"{at}{name}" for name in known ^ set(given) if not at.endswith("affinity."))
    for name in known & set(given):
        yield from _leaves(given[name], part["properties"][name], root, f"{at}{name}.")


@pytest.mark.parametrize("room", DECIDED)
def test_what_another_value_decides_is_a_setting(room):
    assert DECIDED[room] <= set(ROOMS[room].model_fields)


def test_what_another_value_decides_is_set(render):
    everything = {
        "kafka": {"clientCertificate": True, "keyPasswordKey": "password"},
        "claimCheck": {"existingClaim": "media"},
        "credentials": {"trustConfigMap": "anchors"},
        "webhooks": {"secret": "hooks", "caKey": "ca.crt"},
        "settings": {"deploy": {"webhook_hosts": ["hooks.example"]}},
    }
    found = render("tls-sasl", over=everything)
    has = {variable["name"] for _, each in found.containers() for variable in each["env"]}
    assert {f"FORGEWATCH_{room}_{name}".upper() for room, names in DECIDED.items() for name in names} <= has


if __name__ == "__main__":
    (CHART / "values.schema.json").write_text(json.dumps(schema(), indent=2, ensure_ascii=False) + "\n")
    readme = (CHART / "README.md").read_text()
    begin, end = readme.index(BEGIN) + len(BEGIN), readme.index(END)
    (CHART / "README.md").write_text(readme[:begin] + table() + readme[end:])
    (stamped,) = STAMP.findall(_about())
    if stamped != stamp() and stamped.split()[0] == stamp().split()[0]:
        raise SystemExit("the chart's values are others: raise the version in helm/forgewatch/Chart.yaml")
    (CHART / "Chart.yaml").write_text(STAMP.sub(stamp(), _about()))


ROOT = Path(__file__).parents[2]


def test_the_tree_has_each_file_and_nothing_else():
    listed = subprocess.run(["git", "ls-files", "helm"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [path.removeprefix("helm/") for path in listed.stdout.split()]
    tree = (ROOT / "helm" / "README.md").read_text().partition("## The tree")[2]
    named = re.findall(r"^    (\S+) {2,}\S", tree, re.MULTILINE)
    covered = {
        path
        for path in files
        for name in named
        if path == name or (name.endswith("/") and path.startswith(name))
    }
    assert sorted(set(files) - covered) == []
    assert [name for name in named if not any(path.startswith(name) for path in files)] == []


def test_each_value_that_the_clusters_tests_set_is_one():
    """They skip where their tools are not there, and would not be missed."""
    root = schema()
    sets = re.compile(rf"(?:^|,)((?:{'|'.join(root['properties'])})(?:\.\w+)+)[.=]")
    modules = (ROOT / "tests" / "cluster" / "chart").glob("test_*.py")
    nodes = [node for path in modules for node in ast.walk(ast.parse(path.read_text()))]
    texts = [str(node.value) for node in nodes if isinstance(node, ast.Constant)]
    found = {name for text in texts for name in sets.findall(text)}
    assert {"detector.resources", "detector.torchserve.resources", "memory.index.size"} <= found
    for name in found:
        part = root
        for step in name.split("."):
            part = root["definitions"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part
            if "properties" in part:
                assert step in part["properties"], name
                part = part["properties"][step]

"""The rules: promtool takes them, each alert fires and does not fire in its tests, and each has a runbook."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import typer
import yaml

from deploy.cli.main import app
from deploy.environment import SETTINGS
from ingest.process.frame import ProcessSettings

CHART = Path(__file__).parents[3] / "helm" / "forgewatch"
RULES = sorted((CHART / "rules").glob("*.yaml"))
TESTS = sorted((Path(__file__).parent / "rules").glob("*.yaml"))
SECTIONS = ["Cause", "How to see it", "What to do", "How to know that it is over"]

needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed: apt-get install prometheus"
)


def rules():
    return [
        rule
        for path in RULES
        for group in yaml.safe_load(path.read_text())["groups"]
        for rule in group["rules"]
    ]


def alerts():
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def alerts_of_tests(fires):
    cases = (
        case
        for path in TESTS
        for test in yaml.safe_load(path.read_text())["tests"]
        for case in test["alert_rule_test"]
    )
    return {case["alertname"] for case in cases if bool(case["exp_alerts"]) == fires}


@needs_promtool
def test_promtool_takes_the_rules():
    checked = subprocess.run(["promtool", "check", "rules", *RULES], capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@needs_promtool
@pytest.mark.slow
@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_each_alert_fires_when_it_should_and_says_so_in_figures(path, tmp_path):
    whole = yaml.safe_load(path.read_text())
    groups = [
        group
        for rules in whole["rule_files"]
        for group in yaml.safe_load((path.parent / rules).read_text())["groups"]
    ]
    written = []
    for number, test in enumerate(whole["tests"]):
        named = {case["alertname"] for case in test["alert_rule_test"]}
        rules_of_test, alone = tmp_path / f"rules-{number}.yaml", tmp_path / f"test-{number}.yaml"
        rules_of_test.write_text(yaml.safe_dump({"groups": needed(groups, named)}))
        alone.write_text(yaml.safe_dump(whole | {"rule_files": [str(rules_of_test)], "tests": [test]}))
        written.append(alone)
    done = subprocess.run(["promtool", "test", "rules", *written], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def needed(groups, alerts):
    """These alerts and what they read alone: all the others would cost ten times as much."""
    recorded = {rule["record"]: rule for group in groups for rule in group["rules"] if "record" in rule}
    kept = [rule for group in groups for rule in group["rules"] if rule.get("alert") in alerts]
    for rule in kept:
        kept += [read for name, read in recorded.items() if name in rule["expr"] and read not in kept]
    cut = [group | {"rules": [rule for rule in group["rules"] if rule in kept]} for group in groups]
    return [group for group in cut if group["rules"]]


@pytest.mark.parametrize("fires", [True, False])
def test_every_alert_has_a_test_that_it_fires_and_one_that_it_does_not(fires):
    assert alerts_of_tests(fires) == set(alerts())


def test_an_alerts_name_is_unique():
    names = [rule["alert"] for rule in rules() if "alert" in rule]
    assert len(names) == len(set(names))


@pytest.mark.slow
@pytest.mark.parametrize("name", alerts())
def test_every_alert_says_how_bad_it_is_and_names_its_runbook(name):
    alert = alerts()[name]
    assert alert["labels"]["severity"] in {"critical", "warning"}
    assert set(alert["annotations"]) == {"summary", "description", "runbook_url"}
    runbook = CHART.parents[1] / alert["annotations"]["runbook_url"]
    assert runbook.parent == CHART / "runbooks"
    # The windows of one objective share a page.
    assert re.fullmatch(rf"{runbook.stem}(\d[hd])?", name)
    assert runbook.is_file()


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", sorted((CHART / "runbooks").glob("Forgewatch*.md")), ids=lambda path: path.stem
)
def test_every_runbook_has_its_four_sections_and_its_alert(path):
    text = path.read_text()
    assert text.startswith(f"# {path.stem}\n")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == SECTIONS
    assert all(part.strip() for part in re.split(r"^#.*$", text, flags=re.MULTILINE)[1:])
    assert path.name in {Path(alert["annotations"]["runbook_url"]).name for alert in alerts().values()}
    for linked in re.findall(r"\]\(([^)]*)\)", text):
        assert (path.parent / linked).is_file(), linked


PAGES = [*sorted((CHART / "runbooks").glob("*.md")), CHART / "BACKUP.md"]
COMMANDS = typer.main.get_command(app).commands
VARIABLES = {
    f"{kind.model_config['env_prefix']}{name}".upper()
    for kind in (ProcessSettings, *SETTINGS)
    for name in kind.model_fields
}


def unknown_words(text):
    found = set(re.findall(r"\bFORGEWATCH_[A-Z0-9_]+", text)) - VARIABLES
    for given in re.findall(r"`forgewatch ([^`]+)`", text):
        name, *words = given.split()
        if name not in COMMANDS:
            found.add(name)
            continue
        options = {option for parameter in COMMANDS[name].params for option in parameter.opts}
        found |= {word for word in words if word.startswith("-")} - options
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_names_no_command_option_or_setting_that_there_is_not(page):
    assert unknown_words(page.read_text()) == set()


def test_such_words_would_be_seen():
    text = "`forgewatch undo 3 --force`, `forgewatch resume`, `FORGEWATCH_MEMORY_MAX_CLUSTER`"
    assert unknown_words(text) == {"--force", "resume", "FORGEWATCH_MEMORY_MAX_CLUSTER"}

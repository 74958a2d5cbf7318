"""Prometheus beside the whole stack: each panel and each rule finds its data, and alerts fire on purpose."""

import json
import os
import re
import shutil
import signal
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import streams
import yaml

from deploy.client.prometheus import firing_alerts
from deploy.demo.traffic import Traffic
from deploy.local import prometheus
from deploy.local.stack import PROMETHEUS_URL
from detector.release.artifact import EVALUATION, load, seal
from ingest.settings import IngestSettings

pytestmark = [
    pytest.mark.system,
    pytest.mark.skipif(prometheus.program_path() is None, reason="Prometheus is not installed"),
]

CHART = Path(__file__).parents[3] / "helm" / "forgewatch"
VARIABLES = {"$namespace": ".*", "$instance": ".*", "$release": ".*", "$__rate_interval": "1m"}
NOT_HERE = ("forgewatch_updater_gpu_", "forgewatch_updater_stage_duration_seconds")
"""These show on a host with a GPU, and once an update has trained."""
WITH_WEBHOOKS = "forgewatch_deploy_notices_"
"""Of what is told to whom, where anybody is."""
WITHIN_S = 240.0


def filled(expr):
    for name, value in VARIABLES.items():
        expr = expr.replace(name, value)
    return expr


def series_of(expr):
    bare = re.sub(r'"[^"]*"', '""', expr)
    return {
        name
        for name in re.findall(r"[a-z_:][a-z0-9_:]*", bare)
        if name.startswith(("forgewatch_", "process_"))
    }


def panel_queries():
    found = {}
    for path in (CHART / "dashboards").glob("*.json"):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", []):
                found[f"{path.stem}: {panel['title']} {target['refId']}"] = filled(target["expr"])
    return found


def annotations():
    texts = [path.read_text() for path in (CHART / "dashboards").glob("*.json")]
    return {filled(one["expr"]) for text in texts for one in json.loads(text)["annotations"]["list"]}


def rules():
    texts = [path.read_text() for path in (CHART / "rules").glob("*.yaml")]
    return [rule for text in texts for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]


def await_that(holds, what):
    streams.await_that(holds, WITHIN_S, what)


@pytest.fixture(scope="module")
def url(stack, live, kept):
    """The address of the stack's Prometheus, whose own rules are made impatient as their README says."""
    for path in (stack.run / "prometheus" / "rules").iterdir():
        text = re.sub(r"(for|interval): [0-9]+[mhs]", r"\1: 1s", path.read_text())
        path.write_text(text.replace("> 86400", "> 1").replace("[10m]", "[1m]"))
    os.kill(kept("prometheus").pid, signal.SIGHUP)
    return stack.settings[PROMETHEUS_URL]


@pytest.fixture(scope="module")
def query(url):
    """Asks Prometheus; what it cannot evaluate is an error."""

    def ask(expr):
        answer = httpx.get(f"{url}/api/v1/query", params={"query": expr}).json()
        assert answer["status"] == "success", (expr, answer)
        found = answer["data"]["result"]
        return found

    return ask


@pytest.fixture(scope="module")
def watched(stack, url, samples, cli, tmp_path_factory):
    """The stack has answered media, has a few labelled files, and an update that found too few of them."""
    bootstrap = stack.settings["FORGEWATCH_INGEST_BOOTSTRAP_SERVERS"]
    with Traffic(IngestSettings(bootstrap_servers=bootstrap)) as traffic:
        sent = traffic.send(samples(70, 30), "before", per_second=3)
        traffic.wait(sent, lambda *_: None)
    labelled = tmp_path_factory.mktemp("labelled")
    for sample in samples(71, 12):
        (labelled / "real").mkdir(exist_ok=True)
        (labelled / "real" / sample.name).write_bytes(sample.data)
    cli("import", str(labelled))
    cli("update")


@pytest.mark.usefixtures("watched")
def test_every_panel_finds_data(query):
    queries = panel_queries()
    missing = {name: expr for name, expr in queries.items() if not any(one in expr for one in NOT_HERE)}
    assert len(missing) > 50
    assert len(queries) - len(missing) == 3

    def all_found():
        for name in [name for name, expr in missing.items() if query(expr)]:
            del missing[name]
        return not missing

    await_that(all_found, lambda: sorted(missing))


@pytest.mark.usefixtures("watched")
def test_every_rule_is_evaluated_and_reads_series_that_are_there(query):
    expressions = [rule["expr"] for rule in rules()] + sorted(annotations())
    read = {
        name
        for name in set().union(*(series_of(expr) for expr in expressions))
        if not name.startswith(WITH_WEBHOOKS)
    }
    assert len(read) > 20
    await_that(
        lambda: all(query(name) for name in read), lambda: sorted(name for name in read if not query(name))
    )
    for expr in expressions:
        query(expr)
    for rule in rules():
        if "record" in rule:
            await_that(lambda name=rule["record"]: bool(query(name)), lambda name=rule["record"]: name)


@contextmanager
def stopped(process):
    """The process stands still: a supervisor would start a dead one again before anybody is told."""
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


def fires(url, name):
    return name in {alert.name for alert in firing_alerts(url)}


def test_a_torchserve_that_stands_still_fires_until_it_goes_on(url, kept):
    name = "ForgewatchTorchServeNotReady"
    await_that(lambda: not fires(url, name), lambda: "it fires though nothing was done")
    with stopped(kept("torchserve")):
        await_that(lambda: fires(url, name), lambda: firing_alerts(url))
    await_that(lambda: not fires(url, name), lambda: firing_alerts(url))


def test_a_hundred_bad_files_fire(url, traffic):
    name = "ForgewatchDeadLetterRateHigh"
    # Other tests of this folder send bad values too.
    await_that(lambda: not fires(url, name), lambda: "it fires though nothing was done")
    bad = traffic.send_hostile([b"no media"] * 100)
    traffic.wait(bad, lambda *_: None)
    await_that(lambda: fires(url, name), lambda: firing_alerts(url))


def test_an_approval_left_waiting_fires_meanwhile(stack, url, live, tmp_path, cli, propose, make_evaluation):
    name = "ForgewatchApprovalWaiting"
    assert not fires(url, name)
    first = load(stack.run / "deploy" / "artifacts" / live)
    shutil.copytree(first.folder, tmp_path / "waits")
    classes = first.manifest.classes
    # The stack's first update was refused, and with it each candidate that says it is of it.
    evaluation = make_evaluation(classes, live, classes, seed=9).model_copy(update={"update": 9})
    (tmp_path / "waits" / EVALUATION).write_text(evaluation.model_dump_json())
    waits = seal(tmp_path / "waits", first.manifest.model_copy(update={"parent": live}))
    propose(waits)
    await_that(lambda: fires(url, name), lambda: firing_alerts(url))
    assert name in cli("status")
    cli("reject", waits.digest[:12], "--reason", "only a test", "--as", "tester")
    await_that(lambda: not fires(url, name), lambda: firing_alerts(url))

"""Every metric and every label that a rule, a dashboard or a runbook names is there in the code."""

import re
from pathlib import Path
from typing import get_args

import pytest
from prometheus_client import REGISTRY

from deploy.notices.sender import show_webhook
from deploy.record import heads
from deploy.release_records import STATES, Action
from deploy.releases import metrics as deploy_metrics
from deploy.releases.evidence import Evaluations
from deploy.rollout_records import CheckState
from deploy.rollouts import metrics as rollout_metrics
from detector import metrics as detector_metrics
from detector.records import Label
from detector.serving.rollout_source import STATES as ROLLOUT_STATES
from helm.dashboards.__main__ import DASHBOARDS, FOLDER, encode
from ingest import metrics as ingest_metrics
from ingest.process.health import Disks
from ingest.records import ProvenanceState
from memory import metrics as memory_metrics
from memory.records import Shelf
from memory.store import Store
from updater import metrics as updater_metrics
from updater.evaluation_parts import Measure
from updater.gpus import Gpus
from updater.records import RunState
from updater.runs import open_runs
from updater.settings import UpdaterSettings

RUNBOOKS = sorted((Path(__file__).parents[3] / "helm" / "forgewatch" / "runbooks").glob("*.md"))

# What Prometheus adds by itself, and what Kubernetes' service discovery does.
TARGET = {"job", "instance", "namespace"}
BY_PROMETHEUS = {"up": set(), "ALERTS": {"alertname", "alertstate"}}

_MAPS = {sample.labels["outcome"] for metric in detector_metrics.MAPS.collect() for sample in metric.samples}
VALUES = {
    "label": set(get_args(Label)),
    "outcome": {*detector_metrics.OUTCOMES, *_MAPS},
    "shelf": set(get_args(Shelf)),
    "state": {
        *get_args(RunState),
        *get_args(CheckState),
        *STATES,
        *ROLLOUT_STATES,
        *get_args(ProvenanceState),
    },
    "action": set(get_args(Action)),
    "measure": set(get_args(Measure)),
    "room": {"detector", "memory", "updater", "deploy"},
    "slot": {"stable", "canary"},
    "alertstate": {"firing", "pending"},
    "le": {"30.0"},
}
"""Of labels with a closed set, its values; `le` is held to the histogram itself."""

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_SELECTOR = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)\{([^{}]*)\}")
_MATCHER = re.compile(r'(\w+)\s*(=~|!=|=|!~)\s*"([^"]*)"')
_GROUPING = re.compile(r"\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^()]*)\)")


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    url = f"sqlite:///{tmp_path_factory.mktemp('names')}/rows.sqlite"
    ingest_metrics.LAG_SECONDS.assign([])
    memory_metrics.LAG_SECONDS.assign([])
    heads.PUBLISHED.set(1)
    rollout_metrics.PROBLEM.set(0)
    rollout_metrics.show(None)
    show_webhook("1")
    custom = [
        Disks({"tmp": Path("/tmp")}),
        memory_metrics.Fill(Store(url)),
        updater_metrics.Runs(open_runs(UpdaterSettings(database_url=url))),
        Gpus(),
        deploy_metrics.EvaluationGauges(list, Evaluations(lambda digest: b"")),
    ]
    registered = [*REGISTRY._collector_to_names, *updater_metrics.REGISTRY._collector_to_names]
    return dict(series for collector in (*registered, *custom) for series in exposed(collector))


def exposed(collector):
    for metric in collector.collect():
        labels = {*(getattr(collector, "_labelnames", None) or getattr(metric, "_labelnames", ()))}
        if metric.type == "counter":
            yield f"{metric.name}_total", labels
        elif metric.type == "histogram":
            yield f"{metric.name}_bucket", {*labels, "le"}
            yield f"{metric.name}_count", labels
            yield f"{metric.name}_sum", labels
        else:
            yield metric.name, labels


def expressions(rules, dashboards):
    """Each expression with the texts that are filled in from its result."""
    for rule in rules:
        yield rule["expr"], str(rule.get("annotations", ""))
    for dashboard in dashboards.values():
        for annotation in dashboard["annotations"]["list"]:
            yield annotation["expr"], ""
        for variable in dashboard["templating"]["list"]:
            if variable["type"] == "query":
                query = re.fullmatch(r"label_values\((.*), (\w+)\)", variable["query"])
                assert query is not None
                yield query[1], f"{{{{{query[2]}}}}}"
        for panel in dashboard["panels"]:
            for target in panel.get("targets", []):
                yield target["expr"], target["legendFormat"]


def complaints(expr, filled, known):
    bare = re.sub(r'"[^"]*"', '""', expr)
    own = "forgewatch_", "process_"
    names = {x for x in _NAME.findall(bare) if x in BY_PROMETHEUS or ":" in x or x.startswith(own)}
    yield from (f"no series {name}" for name in sorted(names - known.keys()))
    labels = TARGET.union(*(known.get(name, set()) for name in names))
    for name, matchers in _SELECTOR.findall(expr):
        for label, _, value in _MATCHER.findall(matchers):
            if label not in TARGET | known.get(name, set()):
                yield f"{name} has no label {label}"
            if "$" not in value and label in VALUES and not {*value.split("|")} <= VALUES[label]:
                yield f"{name}: {label} is never {value}"
    used = {label.strip() for inner in _GROUPING.findall(bare) for label in inner.split(",") if label.strip()}
    used |= {*re.findall(r"\$labels\.(\w+)", filled), *re.findall(r"\{\{(\w+)\}\}", filled)}
    yield from (f"no label {label}" for label in sorted(used - labels))


def with_recorded(known, rules):
    """Known series and recorded ones, whose first part says by which labels they are."""
    names = [rule["record"] for rule in rules if "record" in rule]
    recorded = {name: {*name.partition(":")[0].split("_")} for name in names}
    return {**known, **recorded, **BY_PROMETHEUS}


def test_everything_that_an_expression_names_is_there(known, rules, dashboards):
    series = with_recorded(known, rules)
    wrong = {
        expr: found
        for expr, filled in expressions(rules, dashboards)
        if (found := list(complaints(expr, filled, series)))
    }
    assert wrong == {}


@pytest.mark.parametrize(
    ("expr", "said"),
    [
        ("rate(forgewatch_detector_consummed_total[5m])", "no series forgewatch_detector_consummed_total"),
        ('forgewatch_updater_runs{stat="queued"}', "forgewatch_updater_runs has no label stat"),
        ('forgewatch_updater_runs{state="waiting"}', "forgewatch_updater_runs: state is never waiting"),
        ("sum by (relaese) (forgewatch_detector_serving)", "no label relaese"),
        ("namespace:forgewatch_nothing:rate5m", "no series namespace:forgewatch_nothing:rate5m"),
    ],
)
def test_a_name_that_is_not_there_is_found(known, rules, expr, said):
    assert list(complaints(expr, "", with_recorded(known, rules))) == [said]


def test_the_bound_of_the_objective_is_a_bucket_in_this_very_spelling():
    buckets = {
        sample.labels["le"]
        for metric in detector_metrics.END_TO_END.collect()
        for sample in metric.samples
        if sample.name.endswith("_bucket")
    }
    assert buckets >= VALUES["le"]


@pytest.mark.parametrize("path", RUNBOOKS, ids=lambda path: path.stem)
def test_every_metric_that_a_runbook_names_is_there(path, known):
    named = {*re.findall(r"\bforgewatch_\w+", path.read_text())}
    assert named - known.keys() == set()


@pytest.mark.parametrize("name", DASHBOARDS)
def test_the_json_is_what_the_source_makes(name):
    assert (FOLDER / f"{name}.json").read_text() == encode(DASHBOARDS[name]()), "run: make dashboards"


def panels(dashboard):
    return [panel for panel in dashboard["panels"] if panel["type"] != "row"]


def test_there_are_three_with_names_of_their_own(dashboards):
    assert set(dashboards) == {"stream", "detection", "operations"}
    assert len({dashboard["uid"] for dashboard in dashboards.values()}) == 3


def test_every_panel_has_a_unit_and_says_what_is_normal(dashboards):
    shown = [panel for dashboard in dashboards.values() for panel in panels(dashboard)]
    assert len(shown) > 40
    for panel in shown:
        described = panel["description"]
        assert "Normal" in described or "Only where" in described or "0: none" in described, panel["title"]
        assert len(described) > 60, panel["title"]
        # A heat map's axis is its buckets, which are scores and have no unit.
        assert panel["type"] == "heatmap" or panel["fieldConfig"]["defaults"]["unit"], panel["title"]


def test_no_data_source_and_no_instance_is_written_in(dashboards):
    for dashboard in dashboards.values():
        asked = [*panels(dashboard), *dashboard["annotations"]["list"]]
        asked += [target for panel in panels(dashboard) for target in panel["targets"]]
        assert {one["datasource"]["uid"] for one in asked} == {"${datasource}"}
        names = [variable["name"] for variable in dashboard["templating"]["list"]]
        assert names[:3] == ["datasource", "namespace", "instance"]
        used = str(dashboard["panels"])
        assert all(f"${name}" in used for name in names[1:])


def test_swaps_and_approvals_are_marked_at_whatever_range_of_time(dashboards):
    for dashboard in dashboards.values():
        marked = {one["name"]: one["expr"] for one in dashboard["annotations"]["list"]}
        assert "swaps" in marked["Swaps"]
        assert "approve" in marked["Approvals"]
        assert all("[$__rate_interval]" in expr for expr in marked.values())


def test_panels_do_not_lie_on_one_another(dashboards):
    for name, dashboard in dashboards.items():
        taken = set()
        for panel in dashboard["panels"]:
            at = panel["gridPos"]
            cells = {
                (x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
            }
            assert not cells & taken, f"{name}: {panel['title']}"
            assert at["x"] + at["w"] <= 24
            taken |= cells


def test_energy_and_unknown_score_are_heat_maps_by_release(dashboards):
    heat = [panel for panel in panels(dashboards["detection"]) if panel["type"] == "heatmap"]
    assert {panel["repeat"] for panel in heat} == {"release"}
    assert {panel["targets"][0]["format"] for panel in heat} == {"heatmap"}
    assert len(heat) == 2


def test_the_source_lies_beside_the_chart_and_not_in_it():
    assert list(Path(FOLDER).parent.rglob("*.py")) == []

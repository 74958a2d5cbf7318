"""No producer chooses how many series a metric has: each label has a bound that is known."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("ingest", "detector", "memory", "updater", "deploy")
KINDS = {"Counter", "Gauge", "Histogram", "Summary", "Info", "Enum"}
FAMILIES = {"GaugeMetricFamily", "CounterMetricFamily", "HistogramMetricFamily", "InfoMetricFamily"}
BOUNDS = {
    "room": "the rooms",
    "stage": "the stages of the code",
    "reason": "the reasons of the code",
    "outcome": "the outcomes of the code",
    "look": "the second looks of the code",
    "statistic": "the statistics of the code",
    "state": "the states of the code",
    "slot": "stable and canary",
    "action": "the moves of the code",
    "of": "shared and canary",
    "bound": "value, low and high",
    "label": "real, fake and unknown",
    "class": "the classes of a release",
    "family": "the families that people name; of verdicts, the classes of a release",
    "shelf": "the shelves",
    "volume": "the folders of the settings",
    "disk": "the disks that those folders lie on",
    "gpu": "the GPUs of the host",
    "role": "live and proposed",
    "measure": "the measures of an evaluation",
    "release": "releases that are loaded: those that left are forgotten",
    "webhook": "the webhooks of the settings",
}


def labels_of(source: str) -> Iterator[tuple[int, str]]:
    """(line, label) of every metric that a source text defines."""
    for node in ast.walk(ast.parse(source)):
        name = ast.unparse(node.func).split(".")[-1] if isinstance(node, ast.Call) else ""
        if not isinstance(node, ast.Call) or name not in KINDS | FAMILIES or len(node.args) < 2:
            continue
        given = [keyword.value for keyword in node.keywords if keyword.arg in ("labels", "labelnames")]
        for labels in [*(node.args[2:3] if name in KINDS else []), *given]:
            for label in ast.literal_eval(labels):
                yield node.lineno, label


def test_every_label_of_a_metric_has_a_bound():
    found = [
        (str(path.relative_to(ROOT)), line, label)
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        for line, label in labels_of(path.read_text())
    ]
    assert [each for each in found if each[2] not in BOUNDS] == []
    assert {label for *_, label in found} == BOUNDS.keys()


@pytest.mark.parametrize("labels", ['["source"]', 'labelnames=("source",)'])
def test_a_label_that_a_producer_chooses_would_be_found(labels):
    """The negative control."""
    assert list(labels_of(f"prometheus_client.Counter('verdicts', 'by source', {labels})")) == [(1, "source")]

"""What a process that lives complains of, read from its metrics. Pure."""

from collections.abc import Iterator
from datetime import UTC, datetime

from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

_UNSERVED = "forgewatch_detector_unserved_since_timestamp_seconds"
_ROLLOUT = "forgewatch_detector_rollout_state"
_SERVING = "forgewatch_detector_serving"

_STATES = {
    "unconfirmed": "the releases topic names what deploy does not confirm; it is not served",
    "unreachable": "it cannot ask deploy what to serve, and goes on with what deploy said last",
    "nothing_approved": "deploy has approved nothing, and what it said last still scores",
}


def complaints(metrics: str) -> list[str]:
    """One phrase for each thing that is not as it should be; metrics is in Prometheus' text format.

    Text that is no such format has no complaints: whether the process lives is asked elsewhere.
    """
    try:
        found = {family.name: family for family in text_string_to_metric_families(metrics)}
    except ValueError:
        return []
    serving = any(sample.value for sample in _samples(found, _SERVING))
    return [*_unserved(found), *_rollout(found, serving=serving)]


def _unserved(found: dict[str, Metric]) -> Iterator[str]:
    for sample in _samples(found, _UNSERVED):
        if sample.value:
            since = datetime.fromtimestamp(sample.value, UTC)
            slot = sample.labels["slot"]
            yield f"the {slot} release that it should serve it does not, since {since:%Y-%m-%d %H:%M:%S} UTC"


def _rollout(found: dict[str, Metric], *, serving: bool) -> Iterator[str]:
    for sample in _samples(found, _ROLLOUT):
        state = sample.labels["state"]
        if sample.value and state in _STATES and (serving or state != "nothing_approved"):
            yield _STATES[state]


def _samples(found: dict[str, Metric], name: str) -> list[Sample]:
    return found[name].samples if name in found else []

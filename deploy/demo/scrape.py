"""What a detector's metrics say that it has done so far."""

import httpx
from prometheus_client.parser import text_string_to_metric_families

_SECONDS = "_seconds_sum"


def totals(metrics_url: str) -> dict[str, float]:
    """Every sample's total by name, over all labels. Raises httpx.HTTPError."""
    text = httpx.get(metrics_url, trust_env=False).raise_for_status().text
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def seconds_spent(metrics_url: str) -> dict[str, float]:
    """Seconds that each part has spent, by the name of its metric up to `_seconds`."""
    return {
        name.removesuffix(_SECONDS): value
        for name, value in totals(metrics_url).items()
        if name.endswith(_SECONDS)
    }

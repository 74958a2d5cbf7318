"""Prometheus metrics of notices. A webhook is named by its number: its URL is a secret."""

from prometheus_client import Counter, Gauge

TAKEN = Counter("forgewatch_deploy_notices_taken", "Notices that a webhook took", ["webhook"])
FAILED = Counter("forgewatch_deploy_notices_failed", "Tries to send a notice that failed", ["webhook"])
LEFT_OUT = Counter(
    "forgewatch_deploy_notices_left_out", "Notices that a webhook did not take in seven days", ["webhook"]
)
WAITING_SINCE = Gauge(
    "forgewatch_deploy_notices_waiting_since_timestamp_seconds",
    "When the oldest notice that a webhook has not taken was written, Unix time; 0: none waits",
    ["webhook"],
)


def show(webhook: str) -> None:
    """Have a webhook's metrics there before its first notice: what was not there has no increase."""
    for metric in (TAKEN, FAILED, LEFT_OUT, WAITING_SINCE):
        metric.labels(webhook)

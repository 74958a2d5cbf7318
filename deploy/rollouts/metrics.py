"""Prometheus metrics of the rollout that goes on."""

from collections.abc import Sequence
from typing import get_args

from prometheus_client import Counter, Gauge

from deploy.rollout_records import Check, CheckState, Trial

SHARE = Gauge(
    "forgewatch_deploy_rollout_share",
    "Share of the items that both releases score, and that the challenger answers; 0 without a rollout",
    ["of"],
)
STEP = Gauge("forgewatch_deploy_rollout_step", "Step of the rollout: 0 shadow, then the canary's; -1: none")
INCONCLUSIVE = Gauge(
    "forgewatch_deploy_rollout_inconclusive", "1 while a rollout is back in shadow and waits for a person"
)
SINCE = Gauge(
    "forgewatch_deploy_rollout_since_timestamp_seconds",
    "Since when the rollout is at its step, Unix time; 0: there is none",
)
CHECKS = Gauge("forgewatch_deploy_rollout_checks", "Checks of the rollout by state", ["state"])
PROBLEM = Gauge("forgewatch_deploy_rollout_problem", "1 while the rollout cannot be read or moved")
UNBELIEVABLE = Counter("forgewatch_deploy_unbelievable_comparisons", "Comparisons that cannot be true")
RETRACTIONS = Gauge("forgewatch_deploy_retractions", "Releases whose verdicts are being taken back")
RETRACTION_SINCE = Gauge(
    "forgewatch_deploy_retraction_since_timestamp_seconds",
    "Since when the oldest of them is, Unix time; 0: there is none",
)
RETRACTION_LEFT = Gauge(
    "forgewatch_deploy_retraction_left", "Records of the verdicts topic that retractions are still to read"
)
RETRACTION_PROBLEM = Gauge("forgewatch_deploy_retraction_problem", "1 while retractions are not followed")


def show(trial: Trial | None) -> None:
    """Bring the gauges to where the rollout stands by the ledger."""
    shared, answered = (0.0, 0.0) if trial is None else trial.shares
    SHARE.labels("shared").set(shared)
    SHARE.labels("canary").set(answered)
    STEP.set(-1 if trial is None else trial.step)
    INCONCLUSIVE.set(trial is not None and trial.inconclusive is not None)
    SINCE.set(0 if trial is None else trial.since.timestamp())
    if trial is None:
        show_checks(())


def show_retractions(began_s: Sequence[float], left: Sequence[int | None]) -> None:
    """Bring the gauges to the retractions: since when (Unix time), and records left (None: unknown)."""
    RETRACTIONS.set(len(began_s))
    RETRACTION_SINCE.set(min(began_s, default=0))
    RETRACTION_LEFT.set(sum(count or 0 for count in left))


def show_checks(checks: Sequence[Check]) -> None:
    for state in get_args(CheckState):
        CHECKS.labels(state).set(sum(check.state == state for check in checks))

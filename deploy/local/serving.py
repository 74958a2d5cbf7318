"""When a stack is ready for media: from then on, a file gets the verdict of the live release."""

import time
from collections.abc import Mapping

import httpx
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console

from deploy.client.http import Client
from deploy.local.processes import StackError
from deploy.local.stack import process_address
from deploy.settings import DeploySettings
from detector.release.artifact import version_of

_TIMEOUT_S = 180.0
_POLL_S = 0.2
_SERVING = "forgewatch_detector_serving"


def await_verdicts(settings: Mapping[str, str], console: Console) -> None:
    """Wait until the detector scores by the live release, if there is one. Raises StackError, ClientError.

    `settings` are a stack's FORGEWATCH_… variables.
    """
    with Client(DeploySettings(url=settings["FORGEWATCH_DEPLOY_URL"]), "up") as api:
        rollout = api.rollout()
    if rollout is None:
        return
    wanted, port = version_of(rollout.stable), settings["FORGEWATCH_DETECTOR_METRICS_PORT"]
    until = time.monotonic() + _TIMEOUT_S
    with console.status(f"the detector loads release {wanted}"):
        while wanted not in _serving(process_address(port, "metrics")) or not _ready(port):
            if time.monotonic() > until:
                raise StackError(
                    f"release {wanted} is live, but the detector did not score by it within "
                    f"{_TIMEOUT_S:.0f} s: `forgewatch doctor` says what is wrong"
                )
            time.sleep(_POLL_S)


def _ready(port: str) -> bool:
    try:
        return httpx.get(process_address(port, "readyz"), timeout=5, trust_env=False).is_success
    except httpx.HTTPError:
        return False


def _serving(metrics_url: str) -> set[str]:
    """The versions by which the detector scores at this moment; none while it does not answer."""
    try:
        text = httpx.get(metrics_url, timeout=5, trust_env=False).raise_for_status().text
    except httpx.HTTPError:
        return set()
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return {sample.labels["release"] for sample in samples if sample.name == _SERVING and sample.value == 1}

"""The doctor on a stack that is well: what is served agrees everywhere."""

import time

import pytest

from deploy.doctor.diagnosis import examine
from deploy.local.stack import Stack
from detector.release.artifact import version_of

pytestmark = pytest.mark.system

_LOADED_WITHIN_S = 120


def test_ledger_topic_and_detector_agree_once_the_release_is_loaded(
    stack: Stack, live: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in stack.settings.items():
        monkeypatch.setenv(name, value)
    deadline = time.monotonic() + _LOADED_WITHIN_S
    while not (served := examine("served release")).ok:
        assert time.monotonic() < deadline, served
    assert served.found == f"detector scores by {version_of(live)}"
    for check in ("ledger", "releases topic"):
        finding = examine(check)
        assert finding.ok, finding

"""The metrics and the health of every process of a running stack."""

import re
import shutil
import subprocess
import time

import httpx
import pytest

from deploy.doctor.diagnosis import examine
from detector.release.artifact import version_of

pytestmark = pytest.mark.system

ROOMS = ("detector", "memory", "updater", "deploy")


VOLUMES = {
    "detector": {"model_store", "tmp"},
    "memory": {"index", "crops", "database", "tmp"},
    "updater": {"work", "database", "tmp"},
    "deploy": {"artifacts", "crops", "database", "tmp"},
}


def metrics_of(stack, room):
    port = stack.settings[f"FORGEWATCH_{room.upper()}_METRICS_PORT"]
    return httpx.get(f"http://127.0.0.1:{port}/metrics").raise_for_status().text


def value(metrics, sample):
    (found,) = re.findall(rf"^{re.escape(sample)} (.+)$", metrics, re.MULTILINE)
    return float(found)


@pytest.mark.parametrize("room", ROOMS)
def test_every_process_lives_and_is_ready_once_a_release_is_live(stack, live, room):
    port = stack.settings[f"FORGEWATCH_{room.upper()}_METRICS_PORT"]
    await_ready(port)
    assert httpx.get(f"http://127.0.0.1:{port}/livez").text == "ok\n"


def await_ready(port):
    deadline = time.monotonic() + 180
    while (answer := httpx.get(f"http://127.0.0.1:{port}/readyz")).status_code != 200:
        assert time.monotonic() < deadline, answer.text


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize("room", ROOMS)
def test_promtool_finds_nothing_wrong_with_the_metrics(stack, live, room):
    port = stack.settings[f"FORGEWATCH_{room.upper()}_METRICS_PORT"]
    metrics = httpx.get(f"http://127.0.0.1:{port}/metrics").content
    checked = subprocess.run(["promtool", "check", "metrics"], input=metrics, capture_output=True)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")


@pytest.mark.parametrize("room", ROOMS)
def test_every_process_shows_itself_and_the_disks_that_it_writes(stack, live, room):
    shown = metrics_of(stack, room)
    assert abs(time.time() - value(shown, "process_start_time_seconds")) < 3600
    for name in ("free", "size"):
        found = re.findall(
            rf'^forgewatch_ingest_disk_{name}_bytes{{disk=".+",volume="(.+)"}} (.+)$', shown, re.MULTILINE
        )
        assert {volume for volume, _ in found} == VOLUMES[room]
        assert all(float(size) > 2**20 for _, size in found)


def await_caught_up(stack, room, gauge):
    deadline = time.monotonic() + 180
    while age_s := value(metrics_of(stack, room), gauge):
        assert time.monotonic() < deadline, f"the oldest has waited {age_s} s"


def test_a_detector_that_has_answered_all_is_not_behind_and_its_torchserve_is_ready(stack, live):
    await_ready(stack.settings["FORGEWATCH_DETECTOR_METRICS_PORT"])
    await_caught_up(stack, "detector", "forgewatch_ingest_lag_seconds")
    assert value(metrics_of(stack, "detector"), "forgewatch_detector_torchserve_ready") == 1


def test_a_memory_that_has_remembered_all_is_not_behind_and_shows_its_caps(stack, live):
    await_ready(stack.settings["FORGEWATCH_MEMORY_METRICS_PORT"])
    await_caught_up(stack, "memory", "forgewatch_memory_lag_seconds")
    shown = metrics_of(stack, "memory")
    assert value(shown, "forgewatch_memory_clusters_waiting") >= 0
    assert value(shown, "forgewatch_memory_max_clustered_exemplars") == 2000
    assert value(shown, "forgewatch_memory_rehearsal_budget_exemplars") == 1500


def test_deploy_shows_what_is_to_be_served_and_how_it_was_measured(stack, live):
    shown = metrics_of(stack, "deploy")
    assert value(shown, f'forgewatch_deploy_serve{{release="{version_of(live)}",slot="stable"}}') == 1
    assert value(shown, "forgewatch_deploy_proposed_since_timestamp_seconds") == 0
    for measure in ("aa", "unseen_auc", "reals_unknown", "reals_fake"):
        assert 0 <= value(shown, f'forgewatch_deploy_evaluation{{measure="{measure}",role="live"}}') <= 1


def test_an_updater_without_a_schedule_has_no_due_time(stack, live):
    assert value(metrics_of(stack, "updater"), "forgewatch_updater_due_timestamp_seconds") == 0


_LOADED_WITHIN_S = 120


def test_ledger_topic_and_detector_agree_once_the_release_is_loaded(stack, live, monkeypatch):
    for name, value in stack.settings.items():
        monkeypatch.setenv(name, value)
    deadline = time.monotonic() + _LOADED_WITHIN_S
    while not (served := examine("served release")).ok:
        assert time.monotonic() < deadline, served
    assert served.found == f"detector scores by {version_of(live)}"
    for check in ("ledger", "releases topic"):
        finding = examine(check)
        assert finding.ok, finding

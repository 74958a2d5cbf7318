"""A worker or TorchServe is killed under traffic: nothing is lost, nothing comes twice."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest

from deploy.doctor.diagnosis import examine
from deploy.local.processes import free_port, start, stop
from deploy.local.torchserve import start_torchserve
from detector.release.artifact import version_of

pytestmark = pytest.mark.system


@pytest.mark.bar("B1")
def test_a_killed_worker_is_started_again_loses_and_repeats_nothing(kept, traffic, samples, answered_once):
    first = traffic.send(samples(2, 20), "before")
    traffic.wait(first, lambda *_: None)
    before = kept("detector")
    sent = traffic.send(samples(3, 150), "before")
    while not any(message.id in traffic.verdicts for message in sent):
        assert kept("detector") == before
    assert not all(message.id in traffic.verdicts for message in sent), (
        "the kill came too late to tell anything"
    )
    os.kill(before.pid, 9)
    traffic.wait(sent, lambda *_: None)
    answered_once(traffic, sent)
    after = kept("detector")
    assert (after.restarts, after.why) == (before.restarts + 1, "terminated by SIGKILL")


def consumed(port):
    """How many records a detector has committed, by its metrics; 0 before they answer."""
    try:
        text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    except httpx.TransportError:
        return 0
    (line,) = [line for line in text.splitlines() if line.startswith("forgewatch_detector_consumed_total ")]
    return float(line.split()[1])


@pytest.mark.bar("B5")
def test_a_second_worker_takes_its_share_and_when_it_is_killed_nothing_is_lost_or_doubled(
    stack, traffic, tmp_path, samples, answered_once
):
    server = start_torchserve(tmp_path / "torchserve", environment={**os.environ, **stack.settings})
    port = free_port()
    own = {
        "FORGEWATCH_DETECTOR_METRICS_PORT": str(port),
        "FORGEWATCH_DETECTOR_TORCHSERVE_URL": server.inference_url,
        "FORGEWATCH_DETECTOR_TORCHSERVE_MANAGEMENT_URL": server.management,
        "FORGEWATCH_DETECTOR_MODEL_STORE_DIR": str(server.model_store),
    }

    def second(log):
        return start(
            "second detector",
            [sys.executable, "-m", "detector"],
            log=tmp_path / log,
            environment={**os.environ, **stack.settings, **own},
            folder=tmp_path,
        )

    sent = []
    running = [second("first.log")]
    try:
        for kill in (True, False):
            before = consumed(stack.ports.detector_metrics)
            # Traffic throughout: the share moves while batches are on their way.
            while not consumed(port):
                assert len(sent) < 1500, "the second worker never took its share"
                sent += traffic.send(samples(1000 + len(sent), 4), "before", per_second=10)
            sent += traffic.send(samples(9000 + kill, 100), "before")
            if kill:
                os.kill(running[0].pid, 9)
                stop(running[0])
                running = [second("again.log")]
            traffic.wait(sent, lambda *_: None)
            assert consumed(stack.ports.detector_metrics) > before
    finally:
        stop(running[0])
        server.stop()
    answered_once(traffic, sent)
    assert not {message.id for message in sent} & set(traffic.dead_letter_ids)


@pytest.mark.bar("S3")
def test_a_lost_torchserve_makes_no_dead_letter(stack, live, kept, traffic, samples, answered_once, bar):
    detector = f"http://127.0.0.1:{stack.ports.detector_metrics}"
    first = traffic.send(samples(4, 1), "before")
    traffic.wait(first, lambda *_: None)
    assert httpx.get(f"{detector}/readyz", timeout=30).text == "ok\n"
    assert "\nforgewatch_detector_torchserve_ready 1.0\n" in httpx.get(f"{detector}/metrics").text
    before = kept("torchserve")
    os.kill(before.pid, 9)
    while (ready := httpx.get(f"{detector}/readyz", timeout=30)).status_code == 200:
        assert kept("torchserve").restarts == before.restarts, (
            "it came back before anybody saw that it was gone"
        )
    assert "TorchServe" in ready.text
    assert "\nforgewatch_detector_torchserve_ready 0.0\n" in httpx.get(f"{detector}/metrics").text
    assert httpx.get(f"{detector}/livez").status_code == 200
    sent = traffic.send(samples(4, 40), "before")
    traffic.wait(sent, lambda *_: None)
    assert httpx.get(f"{detector}/readyz", timeout=30).text == "ok\n"
    assert kept("torchserve").restarts == before.restarts + 1
    bar.count(1)
    answered_once(traffic, sent)
    assert not {message.id for message in sent} & set(traffic.dead_letter_ids)


def test_a_models_worker_holds_no_secret_of_the_environment(stack, kept, live, secret):
    def environment(process):
        return Path(f"/proc/{process.pid}/environ").read_text()

    workers = [
        process
        for process in psutil.Process(kept("torchserve").pid).children(recursive=True)
        if any("model_service_worker" in word for word in process.cmdline())
    ]
    assert workers
    for process in (psutil.Process(kept("torchserve").pid), *workers):
        assert secret not in environment(process)
        assert "TOKEN" not in environment(process)
        assert "PASSWORD" not in environment(process)
    # The control: where it is needed, it is.
    token = stack.settings["FORGEWATCH_UPDATER_DEPLOY_TOKEN"]
    assert f"FORGEWATCH_UPDATER_DEPLOY_TOKEN={token}" in environment(psutil.Process(kept("updater").pid))


# The metrics and the health of every process of a running stack.
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

"""A worker or TorchServe is killed under traffic: nothing is lost, nothing comes twice."""

import os
import sys
from pathlib import Path

import httpx
import psutil
import pytest

from deploy.local.processes import free_port, start, stop
from deploy.local.torchserve import start_torchserve

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

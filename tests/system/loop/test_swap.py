"""A hot swap under traffic, and back."""

import itertools
import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from deploy.demo.claims import Sent
from deploy.demo.traffic import Traffic
from deploy.local.stack import Stack
from detector.release.artifact import EVALUATION, Artifact, load, seal
from updater.benchmark.synthetic.stream import MediaSample
from updater.records import Evaluation

pytestmark = pytest.mark.system

Cli = Callable[..., str]
Samples = Callable[[int, int], list[MediaSample]]
AnsweredOnce = Callable[[Traffic, list[Sent]], None]


def model_retries(stack: Stack) -> float:
    text = httpx.get(f"http://127.0.0.1:{stack.ports.detector_metrics}/metrics").text
    (line,) = [
        line for line in text.splitlines() if line.startswith("forgewatch_detector_model_retries_total")
    ]
    return float(line.split()[1])


def test_a_swap_under_traffic_fails_no_request_and_a_rollback_brings_the_old_release_back(
    stack: Stack,
    traffic: Traffic,
    cli: Cli,
    live: str,
    tmp_path: Path,
    samples: Samples,
    propose: Callable[[Artifact], None],
    make_evaluation: Callable[..., Evaluation],
    answered_once: AnsweredOnce,
) -> None:
    first = load(stack.run / "deploy" / "artifacts" / live)
    folder = tmp_path / "second"
    shutil.copytree(first.folder, folder)
    classes = first.manifest.classes
    (folder / EVALUATION).write_text(make_evaluation(classes, live, classes).model_dump_json())
    second = seal(folder, first.manifest.model_copy(update={"parent": live}))
    propose(second)
    retries = model_retries(stack)
    spoken = threading.Event()
    streaming = itertools.takewhile(lambda _: not spoken.is_set(), samples(5, 600))
    sender = threading.Thread(target=lambda: traffic.send(streaming, "swap", per_second=12))
    sender.start()
    cli("approve", second.digest[:12], "--as", "tester")
    while sender.is_alive() and not spoken.is_set():
        sender.join(0.2)
        if any(verdict.release == second.digest for verdict in list(traffic.verdicts.values())):
            spoken.set()
    sender.join()
    sent = [message for message in traffic.sent if message.phase == "swap"]
    traffic.wait(sent, lambda *_: None)
    answered_once(traffic, sent)
    assert {traffic.verdicts[message.id].release for message in sent} == {live, second.digest}
    assert model_retries(stack) == retries
    cli("rollback", "--reason", "only a test", "--as", "tester")
    for seed in range(6, 60):
        back = traffic.send(samples(seed, 4), "after")
        traffic.wait(back, lambda *_: None)
        if {traffic.verdicts[message.id].release for message in back} == {live}:
            break
    else:
        pytest.fail("the old release never spoke again")
    status = json.loads(cli("status", "--json"))
    assert status["live"]["digest"] == live

import hashlib
import io
import itertools
import json
import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from cloudevents.core.bindings.kafka import to_structured_event
from cloudevents.core.v1.event import CloudEvent
from kafka import KafkaProducer
from PIL import Image

from deploy.demo.claims import Sent
from deploy.demo.traffic import Traffic
from deploy.local.processes import Child, free_port, start, stop
from deploy.local.stack import Stack
from deploy.local.torchserve import start_torchserve
from detector.artifact import EVALUATION, Artifact, load, seal
from ingest.settings import IngestSettings
from updater.deploy_client import DeployClient
from updater.records import Candidate
from updater.settings import UpdaterSettings
from updater.synthetic.stream import MediaSample

pytestmark = pytest.mark.system

FORGEWATCH = Path(sys.executable).with_name("forgewatch")
HOSTILE = Path(__file__).parents[3] / "shared" / "media" / "hostile"


def picture(seed: int, format: str = "JPEG") -> bytes:
    pixels = np.random.default_rng(seed).integers(0, 256, (96, 128, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, format)
    return file.getvalue()


def samples(seed: int, count: int) -> list[MediaSample]:
    return [MediaSample(picture(seed * 1000 + i), "real", f"{seed}-{i}", f"{i}.jpg") for i in range(count)]


def nothing(done: int, total: int) -> None:
    pass


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory, kafka_cache: Path) -> Iterator[Stack]:
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("FORGEWATCH_DETECTOR_TORCHSERVE_TIMEOUT_S", "10")
        with Stack(tmp_path_factory.mktemp("stack"), cache=kafka_cache) as running:
            yield running


@pytest.fixture(scope="module")
def cli(stack: Stack) -> Callable[..., str]:
    def run(*arguments: str) -> str:
        environment = {**os.environ, **stack.settings}
        done = subprocess.run(
            [FORGEWATCH, *arguments], env=environment, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def propose(stack: Stack, artifact: Artifact) -> None:
    settings = UpdaterSettings(deploy_url=stack.settings["FORGEWATCH_DEPLOY_URL"])
    evaluation = hashlib.sha256((artifact.folder / EVALUATION).read_bytes()).hexdigest()
    with DeployClient(settings) as deploy:
        deploy.put(artifact)
        deploy.propose(
            Candidate(
                digest=artifact.digest,
                evaluation_digest=evaluation,
                parent=artifact.manifest.parent,
                update=1,
                classes=artifact.manifest.classes,
                gates=(),
            )
        )


@pytest.fixture(scope="module")
def live(stack: Stack, cli: Callable[..., str], untrained_artifact: Artifact) -> str:
    propose(stack, untrained_artifact)
    cli("approve", untrained_artifact.digest[:12], "--as", "tester")
    return untrained_artifact.digest


@pytest.fixture
def traffic(stack: Stack, live: str) -> Iterator[Traffic]:
    bootstrap = stack.settings["FORGEWATCH_INGEST_BOOTSTRAP_SERVERS"]
    with Traffic(IngestSettings(bootstrap_servers=bootstrap), "forgewatch.verdicts") as open_traffic:
        yield open_traffic


def assert_each_answered_once(traffic: Traffic, sent: list[Sent]) -> None:
    answers = Counter(traffic.verdict_ids) + Counter(traffic.dead_letter_ids)
    assert {message.id: answers[message.id] for message in sent} == {message.id: 1 for message in sent}


def test_every_envelope_gets_a_verdict_and_every_bad_value_a_dead_letter(
    stack: Stack, traffic: Traffic, cli: Callable[..., str]
) -> None:
    event = CloudEvent(
        {
            "id": "a-1",
            "source": "//test",
            "type": "photo",
            "specversion": "1.0",
            "datacontenttype": "image/png",
        },
        picture(1, "PNG"),
    )
    structured = to_structured_event(event)
    good = traffic.send(samples(1, 3), "before")
    good += traffic.send_hostile([picture(2), picture(3, "WEBP")])
    producer = KafkaProducer(bootstrap_servers=stack.settings["FORGEWATCH_INGEST_BOOTSTRAP_SERVERS"])
    headers = [(name, value) for name, value in structured.headers.items()]
    position = producer.send("forgewatch.media", structured.value, headers=headers).get(timeout=10)
    producer.close()
    good.append(Sent(f"{position.topic}-{position.partition}-{position.offset}", None, "before"))
    bad = traffic.send_hostile([None, b"", b"no media", picture(4)[:100]])
    traffic.wait(good + bad, nothing)
    assert_each_answered_once(traffic, good + bad)
    assert {message.id for message in good} <= set(traffic.verdicts)
    assert {message.id for message in bad} <= set(traffic.dead_letter_ids)
    assert traffic.verdicts[good[-1].id].item.media_id == "a-1"
    newest = cli("verdicts", "--count", "3", "--json")
    assert {json.loads(line)["id"] for line in newest.splitlines()} <= set(traffic.verdicts)


@pytest.mark.skipif(not HOSTILE.is_dir(), reason="the hostile files are not here")
def test_every_hostile_file_gets_a_verdict_or_a_dead_letter(traffic: Traffic) -> None:
    values = [path.read_bytes() for path in sorted(HOSTILE.iterdir()) if path.stat().st_size <= 1_000_000]
    sent = traffic.send_hostile(values)
    traffic.wait(sent, nothing)
    assert_each_answered_once(traffic, sent)


def test_a_killed_worker_loses_nothing_and_repeats_nothing(stack: Stack, traffic: Traffic) -> None:
    first = traffic.send(samples(2, 20), "before")
    traffic.wait(first, nothing)
    (detector,) = [child for child in stack.children if child.name == "detector"]
    sent = traffic.send(samples(3, 150), "before")
    while not any(message.id in traffic.verdicts for message in sent):
        assert stack.dead() == []
    assert not all(message.id in traffic.verdicts for message in sent), (
        "the kill came too late to tell anything"
    )
    os.kill(detector.pid, 9)
    stop(detector)
    again = start(
        "detector",
        [sys.executable, "-m", "detector"],
        log=stack.run / "detector-again.log",
        environment={**os.environ, **stack.settings},
        folder=stack.run,
    )
    stack.children[stack.children.index(detector)] = again
    traffic.wait(sent, nothing)
    assert_each_answered_once(traffic, sent)


def consumed(port: int) -> float:
    """How many records a detector has committed, by its metrics; 0 before they answer."""
    try:
        text = httpx.get(f"http://127.0.0.1:{port}/metrics").text
    except httpx.TransportError:
        return 0
    (line,) = [line for line in text.splitlines() if line.startswith("forgewatch_detector_consumed_total ")]
    return float(line.split()[1])


def test_a_second_worker_takes_its_share_and_when_it_is_killed_nothing_is_lost_or_doubled(
    stack: Stack, traffic: Traffic, tmp_path: Path
) -> None:
    server = start_torchserve(tmp_path / "torchserve", environment={**os.environ, **stack.settings})
    port = free_port()
    own = {
        "FORGEWATCH_DETECTOR_TRANSACTIONAL_ID": "forgewatch-detector-1",
        "FORGEWATCH_DETECTOR_METRICS_PORT": str(port),
        "FORGEWATCH_DETECTOR_TORCHSERVE_URL": server.inference_url,
        "FORGEWATCH_DETECTOR_TORCHSERVE_MANAGEMENT": server.management,
        "FORGEWATCH_DETECTOR_MODEL_STORE_DIR": str(server.model_store),
    }

    def second(log: str) -> Child:
        return start(
            "second detector",
            [sys.executable, "-m", "detector"],
            log=tmp_path / log,
            environment={**os.environ, **stack.settings, **own},
            folder=tmp_path,
        )

    sent: list[Sent] = []
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
            traffic.wait(sent, nothing)
            assert consumed(stack.ports.detector_metrics) > before
    finally:
        stop(running[0])
        server.stop()
    assert_each_answered_once(traffic, sent)
    assert not {message.id for message in sent} & set(traffic.dead_letter_ids)


def test_a_lost_torchserve_makes_no_dead_letter_and_its_models_come_back(
    stack: Stack, traffic: Traffic
) -> None:
    (old,) = [child for child in stack.children if child.name == "torchserve"]
    stop(old)
    sent = traffic.send(samples(4, 40), "before")
    again = start_torchserve(
        stack.run / "torchserve", stack.ports.torchserve, environment={**os.environ, **stack.settings}
    )
    stack.children[stack.children.index(old)] = again.process
    traffic.wait(sent, nothing)
    assert_each_answered_once(traffic, sent)
    assert not {message.id for message in sent} & set(traffic.dead_letter_ids)


def test_a_swap_under_traffic_fails_no_request_and_a_rollback_brings_the_old_release_back(
    stack: Stack, traffic: Traffic, cli: Callable[..., str], live: str, tmp_path: Path
) -> None:
    first = load(stack.run / "deploy" / "artifacts" / live)
    folder = tmp_path / "second"
    shutil.copytree(first.folder, folder)
    second = seal(folder, first.manifest.model_copy(update={"parent": live}))
    propose(stack, second)
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
    traffic.wait(sent, nothing)
    assert_each_answered_once(traffic, sent)
    assert {traffic.verdicts[message.id].release for message in sent} == {live, second.digest}
    assert model_retries(stack) == retries
    cli("rollback", "--reason", "only a test", "--as", "tester")
    for seed in range(6, 60):
        back = traffic.send(samples(seed, 4), "after")
        traffic.wait(back, nothing)
        if {traffic.verdicts[message.id].release for message in back} == {live}:
            break
    else:
        pytest.fail("the old release never spoke again")
    status = json.loads(cli("status", "--json"))
    assert status["live"]["digest"] == live


def model_retries(stack: Stack) -> float:
    text = httpx.get(f"http://127.0.0.1:{stack.ports.detector_metrics}/metrics").text
    (line,) = [
        line for line in text.splitlines() if line.startswith("forgewatch_detector_model_retries_total")
    ]
    return float(line.split()[1])


def test_a_file_gets_the_same_verdict_from_score_from_curl_and_from_the_stream(
    stack: Stack, traffic: Traffic, cli: Callable[..., str], tmp_path: Path
) -> None:
    path = tmp_path / "photo.jpg"
    path.write_bytes(picture(9))
    (sent,) = traffic.send([MediaSample(path.read_bytes(), "real", "g", "photo.jpg")], "before")
    traffic.wait([sent], nothing)
    streamed = traffic.verdicts[sent.id]
    scored = json.loads(cli("score", str(path), "--json"))["verdict"]
    url = f"http://127.0.0.1:{stack.ports.torchserve}/predictions/forgewatch"
    served = httpx.put(url, content=path.read_bytes(), timeout=30).raise_for_status().json()
    for other in (scored, served):
        assert (other["label"], other["family"]) == (streamed.label, streamed.family)
        for name in ("fake_probability", "energy", "novelty", "unknown_score"):
            assert other[name] == pytest.approx(getattr(streamed, name), abs=1e-4)


def test_torchserve_refuses_what_is_no_media_with_a_reason(stack: Stack, live: str) -> None:
    url = f"http://127.0.0.1:{stack.ports.torchserve}/predictions/forgewatch"
    answer = httpx.put(url, content=b"no media", timeout=30)
    assert answer.status_code == 415
    assert answer.json()["reason"] == "unknown_format"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
@pytest.mark.parametrize("room", ["detector", "memory", "updater", "deploy"])
def test_promtool_finds_nothing_wrong_with_the_metrics(stack: Stack, live: str, room: str) -> None:
    port = stack.settings[f"FORGEWATCH_{room.upper()}_METRICS_PORT"]
    metrics = httpx.get(f"http://127.0.0.1:{port}/metrics").content
    checked = subprocess.run(["promtool", "check", "metrics"], input=metrics, capture_output=True)
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, b"", b"")

"""Whatever is sent, and by whichever way, gets its one answer."""

import itertools
import json
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from cloudevents.core.bindings.kafka import to_structured_event
from cloudevents.core.v1.event import CloudEvent
from kafka import KafkaProducer

from deploy.demo.claims import Sent
from deploy.demo.traffic import Traffic
from deploy.local.stack import Stack
from detector.release.artifact import EVALUATION, Artifact, load, seal
from updater.benchmark.synthetic.stream import MediaSample
from updater.records import Evaluation

pytestmark = pytest.mark.system

Cli = Callable[..., str]
Picture = Callable[..., bytes]
Samples = Callable[[int, int], list[MediaSample]]
AnsweredOnce = Callable[[Traffic, list[Sent]], None]
HOSTILE = Path(__file__).parents[4] / "shared" / "media" / "hostile"


def test_every_envelope_gets_a_verdict_and_every_bad_value_a_dead_letter(
    stack: Stack, traffic: Traffic, cli: Cli, picture: Picture, samples: Samples, answered_once: AnsweredOnce
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
    position = producer.send("forgewatch.media", structured.value, headers=headers).get(timeout=120)
    producer.close()
    good.append(Sent(f"{position.topic}-{position.partition}-{position.offset}", None, "before"))
    bad = traffic.send_hostile([None, b"", b"no media", picture(4)[:100]])
    traffic.wait(good + bad, lambda *_: None)
    answered_once(traffic, good + bad)
    assert {message.id for message in good} <= set(traffic.verdicts)
    assert {message.id for message in bad} <= set(traffic.dead_letter_ids)
    assert traffic.verdicts[good[-1].id].item.media_id == "a-1"
    newest = cli("verdicts", "--count", "3", "--json")
    assert {json.loads(line)["id"] for line in newest.splitlines()} <= set(traffic.verdicts)


@pytest.mark.bar("M1")
@pytest.mark.skipif(not HOSTILE.is_dir(), reason="the hostile files are not here")
def test_every_hostile_file_gets_a_verdict_or_a_dead_letter(
    traffic: Traffic, answered_once: AnsweredOnce
) -> None:
    values = [path.read_bytes() for path in sorted(HOSTILE.iterdir()) if path.stat().st_size <= 1_000_000]
    sent = traffic.send_hostile(values)
    traffic.wait(sent, lambda *_: None)
    answered_once(traffic, sent)


def test_a_file_gets_the_same_verdict_from_score_from_curl_and_from_the_stream(
    stack: Stack, traffic: Traffic, cli: Cli, tmp_path: Path, picture: Picture
) -> None:
    path = tmp_path / "photo.jpg"
    path.write_bytes(picture(9))
    (sent,) = traffic.send([MediaSample(path.read_bytes(), "real", "g", "photo.jpg")], "before")
    traffic.wait([sent], lambda *_: None)
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

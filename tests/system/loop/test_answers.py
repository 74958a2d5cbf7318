"""Whatever is sent, and by whichever way, gets its one answer."""

import json
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
from updater.benchmark.synthetic.stream import MediaSample

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

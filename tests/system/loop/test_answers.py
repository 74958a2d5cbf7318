"""Whatever is sent, and by whichever way, gets its one answer."""

import json
import time
from pathlib import Path
from typing import cast

import httpx
import pytest
from cloudevents.core.bindings.kafka import to_structured_event
from cloudevents.core.v1.event import CloudEvent
from kafka import KafkaProducer
from media_stream import picture
from serving_faults import (
    Answer,
    Proxy,
    family,
    killed_again_and_again,
    launched,
    metric,
    model_workers,
    rss_bytes,
)
from streams import await_that

from deploy.demo.claims import Sent
from updater.benchmark.synthetic.stream import MediaSample

pytestmark = pytest.mark.system

HOSTILE = Path(__file__).parents[4] / "shared" / "media" / "hostile"


def test_every_envelope_gets_a_verdict_or_a_dead_letter(stack, traffic, cli, picture, samples, answered_once):
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
def test_every_hostile_file_gets_a_verdict_or_a_dead_letter(traffic, answered_once):
    values = [path.read_bytes() for path in sorted(HOSTILE.iterdir()) if path.stat().st_size <= 1_000_000]
    sent = traffic.send_hostile(values)
    traffic.wait(sent, lambda *_: None)
    answered_once(traffic, sent)


def test_a_file_gets_the_same_verdict_by_score_curl_and_stream(stack, traffic, cli, tmp_path, picture):
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


def test_torchserve_refuses_what_is_no_media_with_a_reason(stack, live):
    url = f"http://127.0.0.1:{stack.ports.torchserve}/predictions/forgewatch"
    answer = httpx.put(url, content=b"no media", timeout=30)
    assert answer.status_code == 415
    assert answer.json()["reason"] == "unknown_format"


# TorchServe is away, ill or killed under load: no dead letter for it, and the worker goes on by itself.
MOST_S = 60.0
MOST_MORE_BYTES = 256 * 2**20
"""What a worker holds may grow so far over what it held before: two batches and what was fetched ahead."""
RETRIES = "forgewatch_detector_model_retries_total"
URL = "FORGEWATCH_DETECTOR_TORCHSERVE_URL"


@pytest.fixture(scope="module")
def proxy(trials, champion):
    """The worker asks its TorchServe through it."""
    stack = trials.stack
    with Proxy(stack.settings[URL]) as made, launched(stack, "detector", {URL: made.url}):
        yield made


def fault(name, proxy, trials):
    if name == "down":
        return killed_again_and_again(lambda: family(trials.kept("torchserve").pid)[:1])
    if name == "crash-looping":
        return killed_again_and_again(lambda: model_workers(trials.kept("torchserve").pid))
    return proxy.answering(cast(Answer, name))


@pytest.mark.bar("B7")
@pytest.mark.parametrize(
    "name",
    [
        "slow",
        "503",
        "507",
        "cut",
        "down",
        pytest.param("crash-looping", marks=pytest.mark.bar("B7", chaos=True)),
    ],
)
def test_an_ill_torchserve_makes_no_dead_letter_and_the_worker_goes_on(trials, proxy, stream, name, bar):
    port, pid = trials.stack.ports.detector_metrics, trials.kept("detector").pid
    stream.recovery_s()  # a worker that just started holds little yet
    before = most = rss_bytes(pid)
    proxy.slow_s = bar.times(1, 35)  # longer than the worker waits for an answer
    retries, answered, began_s = metric(port, RETRIES), proxy.answered, time.monotonic()

    def has_lasted():
        nonlocal most
        most = max(most, rss_bytes(pid))
        tried = metric(port, RETRIES) - retries + (proxy.answered - answered if name == "slow" else 0)
        return tried >= 3 and time.monotonic() - began_s > bar.times(0, 45)

    with fault(name, proxy, trials):
        stream.send(map(picture, range(bar.times(50, 2000))))
        await_that(has_lasted, 300, every_s=0.2)
    took_s = stream.goes_on_s()
    stream.drain()
    lost, dead = stream.lost, len(stream.dead_letters.keys() & stream.sent_s.keys())
    more = f"{before / 2**20:.0f} MiB and {(most - before) / 2**20:.0f} more"
    print(f"{name}: back after {took_s:.1f} s, {len(stream.sent_s)} items, {more}")
    bar.count(1, lost=lost + dead, twice=stream.twice, recovery_s=took_s)
    assert (lost, dead, stream.twice) == (0, 0, 0)
    assert most - before < MOST_MORE_BYTES
    assert trials.kept("detector").pid == pid
    assert took_s < MOST_S


@pytest.mark.bar("B7")
def test_control_without_retries_an_ill_torchserve_makes_dead_letters(trials, proxy, stream, bar):
    with launched(trials.stack, "detector", {URL: proxy.url}, without="retries"):
        stream.recovery_s()
        with proxy.answering("503"):
            await_that(lambda: bool(stream.dead_letters.keys() & stream.sent_s.keys()))
        stream.drain()
    bar.count(1, lost=len(stream.dead_letters.keys() & stream.sent_s.keys()))

"""Each webhook gets each notice at least once, in order, with one id, whatever receivers and servers do."""

import base64
import hashlib
import hmac
import json
import subprocess
import sys
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import httpx
import numpy as np
import pytest
from prometheus_client import REGISTRY
from pydantic import SecretStr

from deploy.notice_records import Webhook
from deploy.notices.notices import Notices
from deploy.notices.outbox import Outbox
from deploy.notices.sender import KEPT, Sender
from deploy.record.chain import Act
from deploy.record.record import Record
from deploy.rollout_records import Plan

pytestmark = pytest.mark.slow

KEY = bytes(range(32))
ACTS = 40


def test_a_notice_is_a_signed_cloud_event_whose_id_is_that_of_its_act(telling, record, receiver, act):
    with telling(record, receiver.webhook("/hook")):
        (expected,) = act(1)
        receiver.until_got(1)
    path, headers, body = receiver.got[0]
    event = json.loads(body)
    assert (path, event["id"], headers["webhook-id"]) == ("/hook", expected, expected)
    assert (event["specversion"], event["source"]) == ("1.0", "/forgewatch/deploy")
    assert (event["type"], event["subject"]) == ("io.forgewatch.release.approved", "0" * 64)
    assert (event["data"]["by"], event["data"]["act"]) == ("ada", 1)
    assert headers["content-type"] == "application/cloudevents+json"
    # As the specification of Standard Webhooks has a receiver verify it.
    content = b".".join([expected.encode(), headers["webhook-timestamp"].encode(), body])
    signature = base64.b64encode(hmac.new(KEY, content, hashlib.sha256).digest()).decode()
    assert headers["webhook-signature"] == f"v1,{signature}"


def test_a_webhook_that_is_new_is_told_of_what_comes_and_of_nothing_before(telling, record, receiver, act):
    act(3)
    with telling(record, receiver.webhook()):
        expected = act(2)
        receiver.until_got(2)
    assert receiver.ids == expected


def test_over_twenty_restarts_amid_sending_none_is_lost_and_none_overtakes(telling, record, receiver, act):
    ids = restarted(telling, record, receiver, act)
    assert list(dict.fromkeys(receiver.ids)) == ids
    assert len(receiver.ids) > len(ids)  # some were told twice: a server that ends cannot know better


def test_a_cursor_that_moved_before_its_notice_would_lose_some(telling, record, receiver, act, monkeypatch):
    post = Sender._post

    async def moved_first(self, client, notice):
        self._outbox.pass_on(notice.data.act, taken=None)
        await post(self, client, notice)

    monkeypatch.setattr(Sender, "_post", moved_first)
    ids = restarted(telling, record, receiver, act)
    assert set(ids) - {id_ for id_, taken in zip(receiver.ids, receiver.taken, strict=True) if taken}


def restarted(telling, record, receiver, act):
    """Restart 20 times, each amid a try that is not answered; return the ids of all acts in their order."""
    rng, ids, receiver.taken = np.random.default_rng(5), list[str](), []

    def answer(_):
        said = [204, 500, "drop", "hang"][rng.choice(4, p=[0.5, 0.2, 0.2, 0.1])]
        receiver.taken.append(said == 204)
        return said

    receiver.answer = answer
    with telling(record, receiver.webhook()):
        pass
    for _ in range(20):
        ids += act(3)
        before = len(receiver.got)
        with telling(record, receiver.webhook(), try_s=0.2):
            receiver.until_got(before + 1 + int(rng.integers(3)))
    receiver.answer = lambda _: receiver.taken.append(True) or 204
    with telling(record, receiver.webhook()) as notices:
        (last,) = act(1)
        receiver.until(lambda: receiver.ids[-1:] == [last])
        ids.append(last)
        while notices.states()[0].waiting:
            pass
    return ids


def test_a_step_is_told_with_the_share_of_its_own_rollout_s_plan(telling, record, receiver):
    def begin(plan):
        return Act("ada", "begin", "0" * 64, {"rollout": {"plan": Plan.parse(plan, 10, 500).model_dump()}})

    def step(number):
        return Act("rollout", "step", "0" * 64, {"rollout": {"step": number}})

    with telling(record, receiver.webhook()):
        record.append(begin("25,5,25,100"), step(1), begin("25,0.5,100"), step(1), step(2))
        receiver.until_got(5)
    steps = [json.loads(body)["data"]["step"] for _, _, body in receiver.got]
    assert steps == ["shadow", "5 %", "shadow", "0.5 %", "100 %"]


def test_of_two_servers_one_sends(telling, url, receiver, record, act):
    other = Record(url)
    with telling(record, receiver.webhook()), telling(other, receiver.webhook()):
        ids = act(ACTS)
        receiver.until(lambda: receiver.ids[-1:] == ids[-1:])
    other.close()
    assert receiver.ids == ids


def test_a_lease_is_taken_over_once_it_is_over_or_given_back(record, receiver):
    now, lease = datetime.now(UTC), timedelta(seconds=30)
    one, other = (Outbox(record, receiver.webhook(), lease) for _ in range(2))
    one.open()
    other.open()
    assert (one.claim(now), other.claim(now), one.claim(now)) == (0, None, 0)
    one.release()
    assert (other.claim(now), one.claim(now + lease)) == (0, None)
    assert one.claim(now + 2 * lease) == 0


def test_a_cursor_moves_forward_alone(record, receiver, act):
    act(3)
    outbox = Outbox(record, receiver.webhook())
    outbox.open()
    act(3)
    for place in (9, 7):
        outbox.pass_on(place, taken=None)
    assert outbox.until() == 9


def test_what_was_not_taken_in_a_week_is_left_out_and_counted(telling, record, receiver):
    def left_out():
        return REGISTRY.get_sample_value("forgewatch_deploy_notices_left_out_total", {"webhook": "1"}) or 0.0

    with telling(record, receiver.webhook()):
        pass
    before, old = left_out(), datetime.now(UTC) - KEPT - timedelta(minutes=1)
    record.append(Act("ada", "approve", "0" * 64, at=old), Act("ada", "reject", "0" * 64))
    record.append(Act("ada", "approve", "1" * 64, at=old + timedelta(minutes=2)))
    with telling(record, receiver.webhook()):
        receiver.until_got(1)
    assert json.loads(receiver.got[0][2])["subject"] == "1" * 64
    assert left_out() - before == 1


def test_a_webhook_of_a_companys_authority_is_trusted_by_its_file(telling, record, receiver, act, tmp_path):
    key, authority = tmp_path / "key", tmp_path / "ca.crt"
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    subprocess.run([*command, *subject, "-keyout", key, "-out", authority], check=True, capture_output=True)
    receiver.secure(authority, key)
    webhook = Webhook(url=SecretStr(receiver.webhook().url.get_secret_value().replace("http", "https")))
    with telling(record, webhook) as notices:
        act(1)
        while (problem := notices.states()[0].error) is None:
            pass
    assert "CERTIFICATE_VERIFY_FAILED" in problem
    assert not receiver.got
    with telling(record, webhook, authorities=authority):
        receiver.until_got(1)
    for wrong in (tmp_path / "nowhere", key):
        with pytest.raises(OSError, match=f"WEBHOOK_CA is {wrong}: "):
            Notices(record, [], list, wrong)


def test_without_webhooks_no_thread_runs(telling, record):
    with telling(record) as notices:
        assert notices.states() == []
        assert not notices._thread.is_alive()


def test_a_test_is_sent_at_once_though_the_webhook_has_failed_for_long(record, receiver, act, monkeypatch):
    monkeypatch.setattr("deploy.notices.sender.LONGEST_PAUSE_S", 3600)
    receiver.answer = lambda number: 500 if number == 0 else 200
    sender = Sender(record, 1, receiver.webhook(), KEY, interval_s=1800)
    with Notices(record, [sender], list) as notices:
        act(1)
        notices._loop.call_soon_threadsafe(sender.wake)
        receiver.until_got(1)
        notices.test("bo")
        receiver.until_got(3)
    assert json.loads(receiver.got[2][2])["type"] == "io.forgewatch.notices.test"
    assert json.loads(receiver.got[2][2])["data"]["says"] == "bo tries the webhooks: this one takes notices"


def test_what_waits_is_put_on_record_once_by_two_servers(url, record, receiver):
    waiting = Act("deploy server", "waiting", "0" * 64, {"reason": "it is proposed"}, origin="f" * 32)
    other = Record(url)
    for opened in (record, other):
        sender = Sender(opened, 1, receiver.webhook(), KEY, interval_s=0.01)
        with Notices(opened, [sender], lambda: [waiting]) as notices:
            receiver.until_got(1)
            notices.test("ada")
            while notices.states()[0].waiting:
                pass
    other.close()
    events = [json.loads(body) for _, _, body in receiver.got]
    kinds = [event["type"].removeprefix("io.forgewatch.") for event in events]
    assert kinds == ["release.waiting", "notices.test", "notices.test"]
    assert events[0]["id"] == "f" * 32


SERVER = """
import sys
from datetime import timedelta
from deploy.notice_records import Webhook
from deploy.notices.notices import Notices
from deploy.notices.sender import Sender
from deploy.record.record import Record

url, webhook = sys.argv[1:]
record = Record(url)
sender = Sender(record, 1, Webhook(url=webhook), bytes(32), interval_s=0.01, lease=timedelta(seconds=0.2))
with Notices(record, [sender], list):
    print("sending", flush=True)
    sys.stdin.read()
"""
KILLS = {"sqlite": 8, "postgresql": 4}


@contextmanager
def server(url, webhook):
    command = [sys.executable, "-c", SERVER, url, webhook]
    with subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "sending\n"
        yield process
        process.kill()


@pytest.mark.slow
def test_kills_amid_sending_none_is_lost(either_database, receiver, act_in):
    """Half of them while a notice is under way: it was received, and the server never knew."""
    rng, record, ids = np.random.default_rng(7), Record(either_database), list[str]()
    webhook = receiver.webhook().url.get_secret_value()
    with server(either_database, webhook):
        pass  # the webhook is known from now on
    kills = KILLS[either_database.partition(":")[0]]
    for kill in range(kills):
        ids += act_in(record, 10)
        stands = len(receiver.got) + int(rng.integers(1, 8))
        receiver.answer = lambda number, stands=stands, hangs=kill % 2: (
            "hang" if hangs and number == stands else 204
        )
        with server(either_database, webhook):
            receiver.until_got(stands + 1)
    receiver.answer = lambda _: 204
    ids += act_in(record, 1)
    with server(either_database, webhook):
        receiver.until(lambda: receiver.ids[-1:] == ids[-1:])
    record.close()
    assert list(dict.fromkeys(receiver.ids)) == ids
    assert len(receiver.ids) >= len(ids) + kills // 2


# Receivers that hang, drip, redirect, fail: each is told of in one line, and holds nothing up.
def test_what_answers_500_gets_the_same_notice_again_until_it_takes_it(telling, record, receiver, act):
    receiver.answer = lambda number: 500 if number < 4 else 200
    with telling(record, receiver.webhook()) as notices:
        one, other = act(2)
        receiver.until_got(4)
        receiver.until(lambda: len(receiver.got) >= 6)
    assert receiver.ids == [one] * 5 + [other]
    assert len({body for _, _, body in receiver.got}) == 2
    assert notices.states()[0].error is None


@pytest.mark.parametrize("wrong", ["hang", "drip", 500])
def test_a_webhook_that_does_not_take_delays_no_other_and_no_end(telling, record, make_receiver, act, wrong):
    bad, good = make_receiver(), make_receiver()
    bad.answer = lambda _: wrong
    with telling(record, bad.webhook(), good.webhook(form="slack"), try_s=600) as notices:
        act(ACTS)
        bad.until_got(1)
        good.until_got(ACTS)
        states = notices.states()
    # The end came at once, though a try lasts ten minutes.
    assert [json.loads(body)["text"] for _, _, body in good.got] == [
        f"Forgewatch: release {number:012} is approved by ada" for number in range(ACTS)
    ]
    assert (states[0].waiting, states[0].host) == (ACTS, "127.0.0.1")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("hang", "no answer within 0.2 s"),
        ("drip", "no answer within 0.2 s"),
        ("drop", "no answer: RemoteProtocolError"),
        (500, "it answers 500"),
        (410, "it answers 410"),
        (302, "it answers 302: redirects are not followed"),
    ],
)
def test_why_a_notice_is_not_taken_is_said_in_one_line(telling, record, receiver, act, wrong, said):
    receiver.answer = lambda _: wrong
    with telling(record, receiver.webhook("/secret"), try_s=0.2) as notices:
        act(1)
        receiver.until_got(2)  # so the first try is over
        assert notices.states()[0].error == said


def test_a_webhook_that_nobody_listens_at_is_said_to_be_so(telling, record, make_receiver, act):
    nobody, webhook = make_receiver(), Webhook.model_validate({"url": "http://127.0.0.1:1/secret"})
    with telling(record, webhook, nobody.webhook()) as notices:
        act(1)
        nobody.until_got(1)
        while (error := notices.states()[0].error) is None:
            pass
    assert error.startswith("cannot be reached: ")
    assert "secret" not in error


@pytest.mark.parametrize("follows", [False, True])
def test_a_redirect_leads_to_no_other_host(telling, record, make_receiver, act, monkeypatch, follows):
    """Were it followed, the notice would arrive there."""
    here, elsewhere = make_receiver(), make_receiver()
    here.answer = lambda _: 307
    here.headers = {"location": f"http://127.0.0.1:{elsewhere.port}/taken"}
    if follows:
        client = httpx.AsyncClient
        monkeypatch.setattr(
            "deploy.notices.notices.httpx.AsyncClient",
            lambda **options: client(**options | {"follow_redirects": True}),
        )
    with telling(record, here.webhook()):
        act(1)
        here.until_got(1 if follows else 3)
        if follows:
            elsewhere.until_got(1)
    assert bool(elsewhere.got) == follows


def test_no_log_shows_a_url_whatever_its_level(telling, record, receiver, act, caplog, capfd):
    caplog.set_level("DEBUG")
    receiver.answer = lambda number: [500, 302, "drop", 204][number]
    with telling(record, receiver.webhook("/topsecret")) as notices:
        act(1)
        receiver.until_got(4)
        while notices.states()[0].waiting:
            pass
    said = caplog.text + "".join(capfd.readouterr())
    assert "it answers 500" in said
    assert "topsecret" not in said

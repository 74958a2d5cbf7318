"""Receivers that hang, drip, redirect, fail: each is told of in one line, and holds nothing up."""

import json

import httpx
import pytest

from deploy.notice_records import Webhook

pytestmark = pytest.mark.slow

ACTS = 40


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
def test_a_webhook_that_does_not_take_holds_up_neither_another_nor_the_end(
    telling, record, make_receiver, act, wrong
):
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

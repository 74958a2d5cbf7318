"""Each act that webhooks are told of is one notice, always the same; nothing in it is markup to Slack."""

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from deploy.notice_records import Notice, NoticeData, key_of
from deploy.notices.sender import cloud_event, sign_headers, slack
from deploy.notices.telling import AFTER, TEST, TYPES, ActMessage, notice_of, pending_notice
from deploy.release_records import Release
from deploy.releases.standing import LedgerState
from deploy.rollout_records import Check, Plan, RolloutView, Trial
from deploy.settings import DeploySettings
from ingest.process.frame import find_problems
from memory.purge import PURGE
from memory.shift.alarms import SHIFT

AT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
DIGEST = "0123456789ab" + "c" * 52


def told(action, subject=DIGEST, plan=None, **details):
    return notice_of(ActMessage(7, AT, "ada", action, subject, details, "e" * 64, plan))


@pytest.mark.parametrize(
    ("action", "details", "type_", "says"),
    [
        (
            "propose",
            {},
            "release.proposed",
            "release 0123456789ab is proposed by ada: it waits for an operator",
        ),
        ("approve", {}, "release.approved", "release 0123456789ab is approved by ada"),
        ("begin", {}, "release.step", "release 0123456789ab is in shadow: ada began its rollout"),
        (
            "step",
            {"rollout": {"step": 2}},
            "release.step",
            "release 0123456789ab answers 25 % of the items: ada took it a step on",
        ),
        ("promote", {}, "release.step", "release 0123456789ab is live: ada took it there"),
        (
            "inconclusive",
            {"reason": "24 hours did not decide it"},
            "release.inconclusive",
            "the rollout of release 0123456789ab is inconclusive and waits for a person:"
            " 24 hours did not decide it",
        ),
        (
            "rollback",
            {"reason": "failed: reals"},
            "release.rolled-back",
            "release 0123456789ab is rolled back by ada: failed: reals",
        ),
    ],
)
def test_a_move_is_told_in_one_sentence(action, details, type_, says):
    notice = told(action, plan=Plan(), **details)
    assert (notice.type, notice.data.says) == (f"io.forgewatch.{type_}", says)
    assert (notice.subject, notice.time, notice.id) == (DIGEST, AT, "e" * 64)
    assert notice.data.step == {"begin": "shadow", "step": "25 %", "promote": "live"}.get(action)


def test_figures_findings_and_what_a_purge_took_are_in_the_data():
    check = {
        "name": "real is called fake",
        "counted": 9,
        "items": 100,
        "units": 40,
        "share": 0.09,
        "low": 0.04,
        "high": 0.2,
        "tolerated": 0.03,
        "state": "failed",
    }
    back = told("rollback", reason="failed", rollout={"checks": [check], "retract": True})
    assert back.data.checks is not None
    assert back.data.checks[0].high == 0.2
    assert told("approve", accepted={"power": "new reals"}).data.accepted == {"power": "new reals"}
    purge = told("purge source", "camera", exemplars={"unknown": 3}, blocks=False)
    assert (purge.type, purge.data.details) == (
        TYPES["purge source"],
        {"exemplars": {"unknown": 3}, "blocks": False},
    )


FOUND = {"statistic": "energy", "direction": "higher"}


def test_what_drifts_is_named_be_it_a_source_or_all():
    one = told("drift", "camera", source="camera", **FOUND)
    assert one.data.says == "verdicts on source 'camera' have drifted: energy is higher than before"
    assert one.data.details == {"source": "camera", **FOUND}
    every = told("drift", "all sources", source=None, **FOUND)
    assert every.data.says == "verdicts on all sources have drifted: energy is higher than before"


SOURCES = st.text(max_size=300)


@given(SOURCES)
def test_no_source_speaks_to_slack(source):
    """Which reads `<`, `>` and `&` as links, mentions and entities, and breaks lines."""
    for action in ("shift", "drift", "purge source"):
        body = json.loads(slack(told(action, source, **FOUND)))
        text = body["text"]
        assert not set(text) & set("<>\n\r")
        assert text.replace("&amp;", "").replace("&lt;", "").replace("&gt;", "").count("&") == 0
        assert body["mrkdwn"] is False


def test_a_mention_in_a_source_is_shown_as_it_is():
    text = json.loads(slack(told("purge source", "<!channel> & <http://e.com|x>")))["text"]
    assert text == (
        "Forgewatch: source '&lt;!channel&gt; &amp; &lt;http://e.com|x&gt;' is purged from the memory by ada"
    )


@given(SOURCES, st.integers(0, 2**40))
def test_a_notice_is_the_same_at_each_try(source, now_s):
    one, other = told("shift", source), told("shift", source)
    assert cloud_event(one) == cloud_event(other)
    body = cloud_event(one)
    assert json.loads(body)["subject"] == source
    at_first, later = (sign_headers(one, body, bytes(24), now_s + late) for late in (0, 60))
    assert at_first["webhook-id"] == later["webhook-id"] == one.id
    assert at_first["webhook-signature"] != later["webhook-signature"]


def test_a_signature_is_as_the_specification_has_it():
    """Computed by openssl: HMAC-SHA256 under 32 bytes of 0, over `id.1700000000.{}`."""
    notice = Notice(
        id="id", type="t", time=AT + timedelta(), subject="s", data=NoticeData(says="", by="", act=1)
    )
    headers = sign_headers(notice, b"{}", bytes(32), 1_700_000_000)
    assert headers["webhook-signature"] == "v1,4RWsN79G9FSaBB4pzPIUiUyxrYK6zWhaJ5s1Xcq2c5E="


@pytest.mark.parametrize(
    "secret", ["", "whsec_", "whsec_c2hvcnQ=", "x" * 40, "whsec_" + "A" * 200, "whsec_é"]
)
def test_a_secret_that_is_none_is_refused_in_one_line(secret):
    with pytest.raises(ValueError, match="openssl rand") as refused:
        key_of(secret)
    assert secret == "" or secret not in str(refused.value).replace("whsec_ and", "").replace('"whsec_', "")


@pytest.mark.parametrize(
    ("action", "subject", "path"),
    [
        ("propose", DIGEST, f"/page/releases/{DIGEST}"),
        ("rollback", DIGEST, f"/page/releases/{DIGEST}"),
        (SHIFT, "cam", "/page/clusters"),
        (PURGE, "a&b <c>", "/page/source?name=a%26b%20%3Cc%3E"),
        (TEST, "", "/"),
    ],
)
def test_a_notice_links_to_the_view_that_it_is_about(action, subject, path):
    act = ActMessage(7, AT, "ada", action, subject, {"reason": "<http://evil>"}, "e" * 64)
    notice = notice_of(act, "https://forgewatch.example/")
    assert notice.data.link == f"https://forgewatch.example{path}"
    text = json.loads(slack(notice))["text"]
    assert text.endswith(f" <https://forgewatch.example{path}>")
    assert text.count("<") == 1
    assert "<" not in json.loads(slack(notice_of(act)))["text"]


# What waits for a person is told once: after a day, or at once where a rollout asks for labels.
NOW = datetime(2026, 1, 2, tzinfo=UTC)
NOTHING = RolloutView(trial=None, says="")


def standing(state, since):
    release = Release.model_construct(digest="a" * 64, state=state, since=since)
    return LedgerState(releases={release.digest: release})


def on_trial(since, *states, inconclusive=None):
    trial = Trial(
        release="b" * 64, champion="a" * 64, plan=Plan(), began=NOW, since=since, inconclusive=inconclusive
    )
    checks = tuple(
        Check(
            name=f"check {number}",
            counted=1,
            items=9,
            units=9,
            share=0.1,
            low=0,
            high=1,
            tolerated=0.01,
            state=state,
        )
        for number, state in enumerate(states)
    )
    return RolloutView(trial=trial, says="", checks=checks)


@pytest.mark.parametrize(
    ("state", "waited", "count"),
    [
        ("proposed", AFTER, 1),
        ("proposed with findings", AFTER, 1),
        ("approved", AFTER, 1),
        ("proposed", AFTER - timedelta(seconds=1), 0),
        ("live", AFTER, 0),
        ("rejected", AFTER, 0),
    ],
)
def test_a_release_is_told_of_that_has_waited_for_a_day(state, waited, count):
    assert len(list(pending_notice("id", standing(state, NOW - waited), NOTHING, NOW))) == count


def test_a_rollout_is_told_of_once_for_each_check_that_needs_labels():
    view = on_trial(NOW, "look", "passed", "look")
    acts = list(pending_notice("id", LedgerState(), view, NOW))
    assert [act.details["reason"].partition(": check")[0] for act in acts] == [
        "it needs a person's labels"
    ] * 2
    later = list(pending_notice("id", LedgerState(), view, NOW + 3 * AFTER))
    assert [act.origin for act in acts] == [act.origin for act in later]


def test_an_inconclusive_rollout_is_told_of_again_after_a_day():
    view = on_trial(NOW, "look", inconclusive="24 hours did not decide it")
    assert list(pending_notice("id", LedgerState(), view, NOW)) == []
    (act,) = pending_notice("id", LedgerState(), view, NOW + AFTER)
    assert act.details["reason"] == "its rollout is inconclusive: 24 hours did not decide it"


def test_what_waits_anew_is_told_of_anew():
    first, again = (
        next(pending_notice("id", standing("proposed", NOW - AFTER - more), NOTHING, NOW))
        for more in (timedelta(0), timedelta(1))
    )
    assert first.origin != again.origin
    assert first.origin is not None
    assert len(first.origin) == 32


# A webhook that may not be is refused as the server starts, in one line that shows no URL.
SECRET = "whsec_" + "A" * 43 + "="
URL = "https://hooks.example.com/services/T0/B0/topsecret"


def problems(monkeypatch, webhooks, hosts, secret):
    monkeypatch.setenv("FORGEWATCH_DEPLOY_WEBHOOKS", json.dumps(webhooks))
    monkeypatch.setenv("FORGEWATCH_DEPLOY_WEBHOOK_HOSTS", json.dumps(hosts))
    if secret is not None:
        monkeypatch.setenv("FORGEWATCH_DEPLOY_WEBHOOK_SECRET", secret)
    return [str(problem) for problem in find_problems([DeploySettings])]


def test_webhooks_to_listed_hosts_are_taken_by_any_spelling(monkeypatch):
    webhooks = [{"url": URL.replace("hooks", "Hooks")}, {"url": "http://127.0.0.1:1/x", "form": "slack"}]
    assert problems(monkeypatch, webhooks, ["HOOKS.example.com", "127.0.0.1"], SECRET) == []
    settings = DeploySettings()
    assert [webhook.host for webhook in settings.webhooks] == ["hooks.example.com", "127.0.0.1"]
    assert "topsecret" not in repr(settings)
    assert "topsecret" not in str(settings.model_dump())


@pytest.mark.parametrize(
    ("webhooks", "hosts", "secret", "said"),
    [
        ([{"url": URL}], [], SECRET, "webhook 1 goes to hooks.example.com, which"),
        (
            [{"url": URL, "form": "slack"}],
            ["example.com"],
            None,
            "webhook 1 goes to hooks.example.com, which",
        ),
        (
            [{"url": "https://hooks.example.com@evil.test/topsecret"}],
            ["hooks.example.com"],
            SECRET,
            "to evil.test",
        ),
        ([{"url": "http://169.254.169.254/topsecret"}], ["hooks.example.com"], SECRET, "to 169.254.169.254"),
        ([{"url": "http://localhost/topsecret"}], ["hooks.example.com"], SECRET, "goes to localhost"),
        ([{"url": "http://[::1]/topsecret"}], ["hooks.example.com"], SECRET, "goes to ::1"),
        ([{"url": URL}], ["hooks.example.com"], None, "FORGEWATCH_DEPLOY_WEBHOOK_SECRET is needed"),
        ([{"url": URL}], ["hooks.example.com"], "whsec_dG9wc2VjcmV0", "of 24 to 64 random bytes"),
        ([{"url": URL}, {"url": URL}], ["hooks.example.com"], SECRET, "webhook 2 is there twice"),
        ([{"url": "file:///topsecret"}], [], SECRET, "at 0.url: a webhook's URL begins with"),
        ([{"url": "https://topsecret:x/"}], [], SECRET, "at 0.url: it is no URL"),
        ([{"url": URL, "form": "topsecret"}], ["hooks.example.com"], SECRET, "at 0.form: Input should be"),
        ([{"url": URL, "follow": True}], ["hooks.example.com"], SECRET, "at 0: Extra inputs"),
    ],
)
def test_what_may_not_be_is_refused_in_one_line(monkeypatch, webhooks, hosts, secret, said):
    (problem,) = problems(monkeypatch, webhooks, hosts, secret)
    assert said in problem
    assert "\n" not in problem
    assert not {"topsecret", "dG9wc2VjcmV0"} & set(problem.replace("/", " ").split())
    assert "topsecret" not in problem.replace("https://topsecret", "")

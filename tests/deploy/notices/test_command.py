"""From an act by way of the server to the receiver, and `forgewatch notices` on what became of it."""

import json
from datetime import UTC, datetime

import pytest

from deploy.cli import notices as command
from deploy.cli.main import main
from deploy.settings import DeploySettings
from memory.records import ShiftAlarm
from memory.shift.alarms import put_shelved


@pytest.fixture
def settings(settings, receiver, monkeypatch):
    webhook = {"url": f"http://127.0.0.1:{receiver.port}/topsecret", "form": "cloudevents"}
    monkeypatch.setenv("FORGEWATCH_DEPLOY_WEBHOOKS", json.dumps([webhook]))
    monkeypatch.setenv("FORGEWATCH_DEPLOY_WEBHOOK_HOSTS", '["127.0.0.1"]')
    monkeypatch.setenv("FORGEWATCH_DEPLOY_WEBHOOK_SECRET", "whsec_" + "A" * 43 + "=")
    return DeploySettings()


@pytest.fixture
def telling(services):
    with services.notices:
        yield services


@pytest.fixture
def run(served, monkeypatch, capsys, telling):
    monkeypatch.setenv("FORGEWATCH_DEPLOY_URL", served)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments):
        code = main(arguments)
        return code, *capsys.readouterr()

    return run


def test_what_is_done_in_any_room_is_told_of(telling, http, receiver, make_artifact, propose):
    artifact = make_artifact()
    propose(artifact)
    approved = {"evaluation_digest": artifact.manifest.files["evaluation.json"]}
    assert http.post(f"/releases/{artifact.digest}/approve", json=approved).status_code == 200
    alarm = ShiftAlarm(
        at=datetime.now(UTC),
        source="camera",
        release=artifact.digest,
        items=90,
        since=40,
        log_e=12.0,
        log_limit=9.0,
        id=1,
        suspects=8,
        missing=0,
        cohesion=None,
        cluster="bcdfgh",
    )
    with telling.memory.write() as connection:
        put_shelved(connection, alarm)
    version = http.get("/memory/purge", params={"source": "camera"}).json()["version"]
    http.post("/memory/purge", json={"source": "camera", "version": version})
    telling.memory_acts.bring_in()
    receiver.until_got(5)
    events = [json.loads(body) for _, _, body in receiver.got]
    assert [event["type"].removeprefix("io.forgewatch.") for event in events] == [
        "release.proposed",
        "release.approved",
        "release.step",
        "source.shift",
        "source.purge",
    ]
    assert [event["data"]["by"] for event in events] == ["ada", "ada", "ada", "memory", "ada"]
    assert events[2]["data"]["step"] == "live"
    assert (events[3]["subject"], events[3]["data"]["details"]["cluster"]) == ("camera", "bcdfgh")


def test_webhooks_are_shown_without_their_urls_and_tried(run, receiver):
    code, said, _ = run("notices", "test", "--as", "bo")
    assert (code, receiver.got[0][0]) == (0, "/topsecret")
    assert "127.0.0.1" in said
    assert "all have taken it" in said
    (state,) = json.loads(run("notices", "--json")[1])
    assert (state["number"], state["waiting"], state["error"]) == (1, 0, None)
    assert "topsecret" not in said + run("notices")[1] + json.dumps(state)


def test_a_webhook_that_does_not_take_is_named_with_the_reason(run, receiver, monkeypatch):
    monkeypatch.setattr(command, "_PATIENCE_S", 0.5)
    receiver.answer = lambda _: 403
    code, said, complaint = run("notices", "test", "--as", "bo")
    assert code == 1
    assert "not taken yet by webhook 1" in complaint
    receiver.until_got(2)
    assert "it answers 403" in run("notices")[1]
    assert "topsecret" not in said + complaint

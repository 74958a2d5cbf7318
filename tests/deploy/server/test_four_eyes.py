"""Four eyes over HTTP: people with tokens ask, label, approve; and an approval that is sent once more."""

from contextlib import contextmanager

import pytest
from fastapi.testclient import TestClient
from lineage_story import MEDIA, exemplar, line

from deploy.access.roles import Person, TokenRequest
from deploy.app import create_app
from detector.release.artifact import MANIFEST, SNAPSHOT
from memory.labels import label
from memory.rows import insert_rows
from updater.runs import LeaseLostError

PEOPLE = {"ann": "approver", "bea": "approver", "cem": "admin", "gpu-1": "updater"}


@pytest.fixture
def bearer(services):
    """By name, the header of somebody who has a token."""
    root = Person("root", frozenset({"admin"}), "token")
    return {
        name: {"Authorization": f"Bearer {services.access.tokens.add(wanted, root).token}"}
        for name, role in PEOPLE.items()
        for wanted in [TokenRequest(name=name, role=role, days=1)]
    }


@pytest.fixture
def asked_for(http, services, bearer, make_artifact, propose):
    """What the updater proposed of an update that ann asked for. It learnt from a label of bea's."""
    with services.memory.write() as connection:
        insert_rows(connection, [exemplar(1, "trip")])
    label(services.memory, [f"{MEDIA}-0-1"], "real", "bea")
    assert http.post("/updates", headers=bearer["ann"]).json()["id"] == 1
    artifact = make_artifact(rows=[line(1, "real", "train", "trip", 1)])
    http.headers.update(bearer["gpu-1"])
    propose(artifact)
    return artifact


@contextmanager
def under(settings, services, **changed):
    object.__setattr__(services.access, "settings", settings.model_copy(update=changed))
    with TestClient(create_app(settings, services), base_url="http://127.0.0.1:8700") as client:
        yield client


def body(artifact, candidate_of, **more):
    return {"evaluation_digest": candidate_of(artifact).evaluation_digest, **more}


def test_who_asked_is_on_the_ledger_and_another_approves(http, bearer, asked_for, candidate_of, services):
    path, wanted = f"/releases/{asked_for.digest}", body(asked_for, candidate_of)
    assert http.get(path, headers=bearer["ann"]).json()["requested_by"] == "ann"
    refused = http.post(f"{path}/approve", json=wanted, headers=bearer["ann"])
    assert refused.status_code == 409
    assert refused.json()["detail"].startswith("ann asked for the update that made release")
    assert len(services.ledger.events()) == 1
    done = http.post(f"{path}/approve", json=wanted, headers=bearer["bea"]).json()
    assert done["state"] == "live"
    (approval,) = done["approvals"]
    bound = {name: approval[name] for name in ("actor", "labelled", "artifact", "evaluation", "snapshot")}
    assert bound == {
        "actor": "bea",
        "labelled": 1,
        "artifact": asked_for.digest,
        "evaluation": wanted["evaluation_digest"],
        "snapshot": asked_for.manifest.files[SNAPSHOT],
    }
    assert approval["ledger"] == services.ledger.events()[0].hash
    acts = {act.action: act for act in services.record.entries(5)}
    assert acts["propose"].details["requested_by"] == "ann"
    assert acts["approve"].details["bound"]["ledger"] == approval["ledger"]


def test_a_token_that_somebody_gave_or_got_approves_nothing_of_theirs_though_it_ended(
    http, bearer, asked_for, candidate_of, services
):
    """ann's update; cem and root gave the tokens of these chains, some of which are revoked by now."""

    def token(giver, name, role):
        by = Person(giver, frozenset({"admin"}), "proxy")
        made = services.access.tokens.add(TokenRequest(name=name, role=role, days=1), by)
        return {"Authorization": f"Bearer {made.token}"}

    path, wanted = f"/releases/{asked_for.digest}", body(asked_for, candidate_of)
    token("Ann", "middle", "admin")
    services.access.tokens.revoke("MIDDLE", "root")
    lines = {name: token(giver, name, "admin") for giver, name in (("middle", "last"), ("last", "zed"))}
    for name, header in lines.items():
        refused = http.post(f"{path}/approve", json=wanted, headers=header)
        assert (refused.status_code, f"{name} has a token by way of ann" in refused.text) == (409, True)
    services.access.tokens.revoke("zed", "root")
    token("ann", "ZED", "viewer")
    assert http.post(f"{path}/approve", json=wanted, headers=lines["last"]).status_code == 409
    done = http.post(f"{path}/approve", json=wanted, headers=bearer["bea"]).json()
    assert (done["state"], done["approvals"][0]["token_by"]) == ("live", "root")
    (act,) = services.record.entries(1, action="approve")
    assert act.details["bound"]["token_by"] == "root"


def test_an_update_is_cancelled_by_who_asked_or_an_approver_and_what_it_made_is_not_proposed(
    http, services, bearer, make_artifact, candidate_of
):
    root = Person("root", frozenset({"admin"}), "token")
    for name in ("dan", "eve"):
        token = services.access.tokens.add(TokenRequest(name=name, role="reviewer", days=1), root).token
        bearer[name] = {"Authorization": f"Bearer {token}"}
    for _ in range(2):
        http.post("/updates", headers=bearer["dan"])
    lease = services.runs.claim("runner")
    assert lease is not None
    because = {"reason": " mislabelled "}
    for name, status in (("gpu-1", 403), ("eve", 403), ("dan", 200), ("dan", 409)):
        assert http.post("/updates/1/cancel", json=because, headers=bearer[name]).status_code == status
    assert http.post("/updates/2/cancel", json={"reason": " "}, headers=bearer["dan"]).status_code == 422
    assert http.post("/updates/2/cancel", json=because, headers=bearer["bea"]).json()["state"] == "refused"
    assert http.post("/updates/9/cancel", json=because, headers=bearer["bea"]).status_code == 404
    acts = services.record.entries(9, action="cancel update")
    assert [(act.actor, act.subject, act.details) for act in acts] == [
        ("bea", "update 2", {"reason": "mislabelled"}),
        ("dan", "update 1", {"reason": "mislabelled"}),
    ]
    with pytest.raises(LeaseLostError):
        services.runs.heartbeat(lease, "train", 1, 2)
    made = make_artifact()
    for name in (*made.manifest.files, MANIFEST):
        content = (made.folder / name).read_bytes()
        http.put(f"/artifacts/{made.digest}/{name}", content=content, headers=bearer["gpu-1"])
    candidate = candidate_of(made).model_dump(mode="json")
    refused = http.post("/releases", json=candidate, headers=bearer["gpu-1"])
    assert (refused.status_code, "cancelled by dan: mislabelled" in refused.text) == (409, True)


def test_two_people_approve_where_a_setting_asks_for_two_and_labellers_may_be_kept_out(
    bearer, asked_for, candidate_of, settings, services
):
    path, wanted = f"/releases/{asked_for.digest}", body(asked_for, candidate_of)
    with under(settings, services, approvals=2, labellers_may_approve=False) as http:
        kept_out = http.post(f"{path}/approve", json=wanted, headers=bearer["bea"])
        assert (kept_out.status_code, "labels of bea" in kept_out.text) == (409, True)
        wanted_by = Person("bea", frozenset({"admin"}), "token")
        other = services.access.tokens.add(TokenRequest(name="bea2", role="approver", days=1), wanted_by)
        hers = http.post(f"{path}/approve", json=wanted, headers={"Authorization": f"Bearer {other.token}"})
        assert (hers.status_code, "labels of bea" in hers.text) == (409, True)
        first = http.post(f"{path}/approve", json=wanted, headers=bearer["cem"]).json()
        assert (first["state"], first["lacking"]) == ("approved", 1)
        alone = http.post(f"{path}/promote", headers=bearer["cem"])
        assert (alone.status_code, "1 of 2 approvals" in alone.text) == (409, True)
    with under(settings, services, approvals=2) as http:
        second = http.post(f"{path}/approve", json=wanted, headers=bearer["bea"]).json()
        assert (second["state"], second["lacking"]) == ("live", 0)


def test_an_approval_that_is_sent_once_more_after_a_rollback_approves_nothing(
    http, bearer, asked_for, make_artifact, propose, candidate_of, services
):
    first, second = asked_for, make_artifact(asked_for)
    for artifact in (first, second):
        if artifact is second:
            propose(second)
        seen = http.get(f"/releases/{artifact.digest}", headers=bearer["bea"]).json()["ledger"]
        sent = body(artifact, candidate_of, ledger=seen)
        path = f"/releases/{artifact.digest}/approve"
        assert http.post(path, json=sent, headers=bearer["bea"]).json()["state"] == "live"
    assert http.post("/rollback", json={"reason": "worse"}, headers=bearer["cem"]).status_code == 200
    propose(second)
    before = len(services.ledger.events())
    replayed = http.post(path, json=sent, headers=bearer["bea"])
    assert (replayed.status_code, "proposed anew since you looked" in replayed.text) == (409, True)
    assert len(services.ledger.events()) == before


def test_an_approval_that_has_expired_takes_nothing_live(bearer, asked_for, candidate_of, settings, services):
    path, wanted = f"/releases/{asked_for.digest}", body(asked_for, candidate_of, promote=False)
    with under(settings, services, approval_days=1e-9) as http:
        assert http.post(f"{path}/approve", json=wanted, headers=bearer["bea"]).json()["state"] == "approved"
        late = http.post(f"{path}/promote", headers=bearer["bea"])
        assert (late.status_code, "(1 expired)" in late.text) == (409, True)
    with under(settings, services) as http:
        assert http.post(f"{path}/approve", json=wanted, headers=bearer["bea"]).json()["lacking"] == 0
        assert http.post(f"{path}/promote", headers=bearer["bea"]).json()["state"] == "live"

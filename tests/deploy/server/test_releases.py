"""Releases over HTTP: from artifact to live and back, and everything that must not pass."""

import re
import sqlite3
from contextlib import contextmanager
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from lineage_story import MEDIA, exemplar, line

from deploy.access.roles import Person, TokenRequest
from deploy.app import create_app
from detector.release.artifact import EVALUATION, MANIFEST, REFERENCE, SNAPSHOT, WEIGHTS
from memory.labels import label
from memory.rows import insert_rows
from updater.runs import LeaseLostError


def approve(http, candidate):
    body = {"evaluation_digest": candidate.evaluation_digest}
    return http.post(f"/releases/{candidate.digest}/approve", json=body)


@pytest.mark.slow
def test_a_candidate_is_put_proposed_approved_and_rolled_back(http, make_artifact, candidate_of, propose):
    first = make_artifact()
    second = make_artifact(first, ("upsampling",))
    for artifact in (first, second):
        assert http.get(f"/releases/{artifact.digest}").status_code == 404
        propose(artifact)
        assert approve(http, candidate_of(artifact)).json()["state"] == "live"
    rollout = http.get("/rollout").json()
    assert re.fullmatch("[0-9a-f]{32}", rollout.pop("ledger"))
    assert rollout == {
        "epoch": 0,
        "sequence": 6,
        "stable": second.digest,
        "canary": None,
        "canary_share": 0,
        "shared_share": 0,
        "retractions": [],
        "previous": first.digest,
        "trial": None,
    }
    assert http.post("/rollback", json={"reason": "worse"}).json()["digest"] == first.digest
    assert http.get(f"/releases/{second.digest}").json()["state"] == "rolled back"
    history = http.get(f"/releases/{second.digest}").json()["history"]
    assert [(entry["action"], entry["actor"]) for entry in history] == [
        ("propose", "ada"),
        ("approve", "ada"),
        ("promote", "ada"),
        ("rollback", "ada"),
    ]
    assert history[-1]["reason"] == "worse"


def test_before_the_first_approval_the_rollout_is_null(http):
    assert http.get("/rollout").json() is None


@pytest.mark.parametrize("name", [EVALUATION, WEIGHTS, "manifest.json"])
def test_one_changed_byte_makes_the_approval_void(http, make_artifact, settings, name, candidate_of, propose):
    artifact = make_artifact()
    propose(artifact)
    path = Path(settings.artifacts_url) / artifact.digest / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    answer = approve(http, candidate_of(artifact))
    assert answer.status_code in (409, 422)
    assert http.get(f"/releases/{artifact.digest}").json()["state"] == "proposed"
    assert http.get("/rollout").json() is None


def test_a_candidate_with_findings_goes_live_only_with_a_reason_for_each_which_the_record_keeps(
    http, make_artifact, candidate_of, put
):
    artifact = make_artifact(named=0.1)
    put(artifact)
    candidate = candidate_of(artifact)
    flattered = [gate.model_copy(update={"holds": True, "value": 1.0}) for gate in candidate.gates]
    for gates in (flattered, []):
        body = candidate.model_copy(update={"gates": tuple(gates)}).model_dump(mode="json")
        assert http.post("/releases", json=body).status_code == 409
    assert http.post("/releases", json=candidate.model_dump(mode="json")).json()["state"] == (
        "proposed with findings"
    )
    refused = approve(http, candidate)
    assert (refused.status_code, "share of blend named" in refused.json()["detail"]) == (409, True)
    assert http.get("/rollout").json() is None
    accept = {"share of blend named": "it is rare here"}
    body = {"evaluation_digest": candidate.evaluation_digest, "accept": accept}
    assert http.post(f"/releases/{artifact.digest}/approve", json=body).json()["state"] == "live"
    told = [(entry["action"], entry["actor"], entry["accepted"]) for entry in http.get("/ledger").json()]
    assert told == [("propose", "ada", None), ("approve", "ada", accept), ("promote", "ada", None)]


def test_to_approve_and_to_take_live_are_two_moves_on_request(http, make_artifact, candidate_of, propose):
    artifact = make_artifact()
    propose(artifact)
    path = f"/releases/{artifact.digest}"
    assert http.post(f"{path}/promote").status_code == 409
    body = {"evaluation_digest": candidate_of(artifact).evaluation_digest, "promote": False}
    for _ in range(2):  # twice is once
        approved = http.post(f"{path}/approve", json=body).json()
        assert (approved["state"], approved["lacking"], len(approved["approvals"])) == ("approved", 0, 1)
    assert [one["state"] for one in http.get("/status").json()["proposed"]] == ["approved"]
    assert http.get("/rollout").json() is None
    assert http.post(f"{path}/promote").json()["state"] == "live"
    assert [entry["action"] for entry in http.get("/ledger").json()] == ["propose", "approve", "promote"]


def test_a_damaged_ledger_answers_503_and_says_what_to_do(http, make_artifact, propose, settings):
    propose(make_artifact())
    with sqlite3.connect(settings.database_url.removeprefix("sqlite:///")) as shell:
        shell.execute("DROP TRIGGER deploy_ledger_no_update")
        shell.execute("UPDATE deploy_ledger SET actor = 'eve'")
    shell.close()
    for path in ("/rollout", "/ledger", "/status"):
        answer = http.get(path)
        assert (answer.status_code, "row 1 of the ledger was changed" in answer.text) == (503, True)


def test_a_candidate_without_its_artifact_is_refused(http, make_artifact, candidate_of):
    body = candidate_of(make_artifact()).model_dump(mode="json")
    assert http.post("/releases", json=body).status_code == 404


def test_an_artifact_is_there_only_when_it_is_whole(http, make_artifact, put):
    artifact = make_artifact()
    url = f"/artifacts/{artifact.digest}"
    manifest = (artifact.folder / "manifest.json").read_bytes()
    early = http.put(f"{url}/manifest.json", content=manifest)
    assert early.status_code == 422
    assert "missing" in early.json()["detail"]
    http.put(f"{url}/{WEIGHTS}", content=b"other bytes")
    for name in artifact.manifest.files:
        if name != WEIGHTS:
            http.put(f"{url}/{name}", content=(artifact.folder / name).read_bytes())
    damaged = http.put(f"{url}/manifest.json", content=manifest)
    assert damaged.status_code == 422
    assert WEIGHTS in damaged.json()["detail"]
    assert http.get(f"{url}/{EVALUATION}").status_code == 404
    put(artifact)
    for name in (*artifact.manifest.files, "manifest.json"):
        assert http.get(f"{url}/{name}").content == (artifact.folder / name).read_bytes()


def test_putting_a_complete_artifact_again_changes_nothing(http, make_artifact, settings, put):
    artifact = make_artifact()
    put(artifact)
    answer = http.put(f"/artifacts/{artifact.digest}/{WEIGHTS}", content=b"other bytes")
    assert answer.status_code == 204
    assert (Path(settings.artifacts_url) / artifact.digest / WEIGHTS).read_bytes() == (
        artifact.folder / WEIGHTS
    ).read_bytes()
    assert not any(path.is_file() for path in (Path(settings.artifacts_url) / ".incoming").rglob("*"))


def test_a_file_that_the_manifest_does_not_name_is_never_served(http, make_artifact, put):
    artifact = make_artifact()
    url = f"/artifacts/{artifact.digest}"
    assert http.put(f"{url}/extra.html", content=b"<script>").status_code == 422
    assert http.put(f"{url}/{REFERENCE}", content=b"of no forensic network").status_code == 204
    put(artifact)
    assert http.get(f"{url}/{REFERENCE}").status_code == 404


def test_no_file_name_leads_out_of_the_store(http, tmp_path):
    def files():
        found = {path for path in tmp_path.rglob("*") if path.is_file()}
        # The store looks at its clock as the server starts, which may be now.
        return {path for path in found if "sqlite" not in path.name and ".clock" not in path.name}

    before = files()
    hidden = ["..%2F..%2Fevil", "%2e%2e", "..", ".hidden"]
    for name in [*hidden, "a%00b", "a%2Fb", "a%5Cb", "%2Fetc%2Fpasswd", "x" * 101]:
        for digest in ("a" * 64, "..", "%2e%2e"):
            assert http.put(f"/artifacts/{digest}/{name}", content=b"x").status_code in (404, 405, 422)
            answer = http.get(f"/artifacts/{digest}/{name}")
            # The client itself resolves some of these to the page's address.
            assert answer.url.path == "/" or answer.status_code in (404, 405, 422)
    assert files() == before


def test_a_file_over_the_limit_is_refused_and_leaves_nothing(http, settings):
    answer = http.put(f"/artifacts/{'a' * 64}/weights.safetensors", content=b"x" * 100_001)
    assert answer.status_code == 413
    left = {path.name for path in Path(settings.artifacts_url).rglob("*") if path.is_file()}
    assert {name for name in left if ".clock" not in name} == set()


def test_whoever_changes_something_must_say_who_they_are(http, make_artifact, services, propose):
    propose(make_artifact())
    del http.headers["X-Forgewatch-Actor"]
    assert http.post("/rollback", json={"reason": "x"}).status_code == 422
    assert (
        http.post("/rollback", json={"reason": "x"}, headers={"X-Forgewatch-Actor": "%00"}).status_code == 422
    )
    assert len(services.ledger.events()) == 1


def test_an_actor_is_put_on_record_in_any_script(http, make_artifact, propose):
    http.headers["X-Forgewatch-Actor"] = "J%C3%BCrgen%20%E6%9D%8E"
    propose(make_artifact())
    assert http.get("/ledger").json()[0]["actor"] == "Jürgen 李"


# Four eyes over HTTP: people with tokens ask, label, approve; and an approval that is sent once more.
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

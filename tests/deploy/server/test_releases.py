"""Releases over HTTP: from artifact to live and back, and everything that must not pass."""

import re
import sqlite3
from pathlib import Path

import pytest

from detector.release.artifact import EVALUATION, REFERENCE, WEIGHTS


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

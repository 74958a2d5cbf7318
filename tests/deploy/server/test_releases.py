"""Releases over HTTP: from artifact to live and back, and everything that must not pass."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from deploy.server.services import Services
from deploy.settings import DeploySettings
from detector.artifact import EVALUATION, WEIGHTS, Artifact
from updater.records import Candidate

Make = Callable[[str], Artifact]
CandidateOf = Callable[..., Candidate]
Put = Callable[[Artifact], None]


def test_a_candidate_is_put_proposed_approved_and_rolled_back(
    http: TestClient, make_artifact: Make, candidate_of: CandidateOf, propose: Put
) -> None:
    first, second = make_artifact("a"), make_artifact("b")
    for artifact in (first, second):
        assert http.get(f"/releases/{artifact.digest}").status_code == 404
        propose(artifact)
        body = {"evaluation_digest": candidate_of(artifact).evaluation_digest}
        approved = http.post(f"/releases/{artifact.digest}/approve", json=body)
        assert approved.json()["state"] == "live"
    rollout = http.get("/rollout").json()
    assert re.fullmatch("[0-9a-f]{32}", rollout.pop("ledger"))
    assert rollout == {
        "epoch": 0,
        "sequence": 6,
        "stable": second.digest,
        "canary": None,
        "canary_share": 0,
        "previous": first.digest,
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


def test_before_the_first_approval_the_rollout_is_null(http: TestClient) -> None:
    assert http.get("/rollout").json() is None


@pytest.mark.parametrize("name", [EVALUATION, WEIGHTS, "manifest.json"])
def test_one_changed_byte_on_the_disk_makes_the_approval_void(
    http: TestClient,
    make_artifact: Make,
    settings: DeploySettings,
    name: str,
    candidate_of: CandidateOf,
    propose: Put,
) -> None:
    artifact = make_artifact("a")
    propose(artifact)
    path = settings.artifacts_dir / artifact.digest / name
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    body = {"evaluation_digest": candidate_of(artifact).evaluation_digest}
    answer = http.post(f"/releases/{artifact.digest}/approve", json=body)
    assert answer.status_code in (409, 422)
    assert http.get(f"/releases/{artifact.digest}").json()["state"] == "proposed"
    assert http.get("/rollout").json() is None


def test_a_rejected_release_can_neither_be_approved_nor_proposed_again(
    http: TestClient, make_artifact: Make, candidate_of: CandidateOf, propose: Put
) -> None:
    artifact = make_artifact("a")
    propose(artifact)
    assert (
        http.post(f"/releases/{artifact.digest}/reject", json={"reason": "no"}).json()["state"] == "rejected"
    )
    body = {"evaluation_digest": candidate_of(artifact).evaluation_digest}
    assert http.post(f"/releases/{artifact.digest}/approve", json=body).status_code == 409
    again = http.post("/releases", json=candidate_of(artifact).model_dump(mode="json"))
    assert again.status_code == 409
    assert "rejected" in again.json()["detail"]


def test_a_candidate_whose_gate_does_not_hold_is_refused(
    http: TestClient, make_artifact: Make, candidate_of: CandidateOf, put: Put
) -> None:
    artifact = make_artifact("a")
    put(artifact)
    body = candidate_of(artifact, holds=False).model_dump(mode="json")
    answer = http.post("/releases", json=body)
    assert answer.status_code == 409
    assert "reals called fake" in answer.json()["detail"]


def test_a_candidate_without_its_artifact_is_refused(
    http: TestClient, make_artifact: Make, candidate_of: CandidateOf
) -> None:
    body = candidate_of(make_artifact("a")).model_dump(mode="json")
    assert http.post("/releases", json=body).status_code == 404


def test_an_artifact_is_there_only_when_it_is_whole(http: TestClient, make_artifact: Make, put: Put) -> None:
    artifact = make_artifact("a")
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


def test_a_manifest_under_another_digest_is_refused(http: TestClient, make_artifact: Make) -> None:
    first, second = make_artifact("a"), make_artifact("b")
    for name in first.manifest.files:
        http.put(f"/artifacts/{second.digest}/{name}", content=(first.folder / name).read_bytes())
    content = (first.folder / "manifest.json").read_bytes()
    assert http.put(f"/artifacts/{second.digest}/manifest.json", content=content).status_code == 422


def test_putting_a_complete_artifact_again_changes_nothing(
    http: TestClient, make_artifact: Make, settings: DeploySettings, put: Put
) -> None:
    artifact = make_artifact("a")
    put(artifact)
    answer = http.put(f"/artifacts/{artifact.digest}/{WEIGHTS}", content=b"other bytes")
    assert answer.status_code == 204
    assert (settings.artifacts_dir / artifact.digest / WEIGHTS).read_bytes() == (
        artifact.folder / WEIGHTS
    ).read_bytes()
    assert list((settings.artifacts_dir / ".incoming").iterdir()) == []


def test_a_file_that_the_manifest_does_not_name_is_never_served(
    http: TestClient, make_artifact: Make, put: Put
) -> None:
    artifact = make_artifact("a")
    http.put(f"/artifacts/{artifact.digest}/extra.html", content=b"<script>")
    put(artifact)
    assert http.get(f"/artifacts/{artifact.digest}/extra.html").status_code == 404


@pytest.mark.parametrize(
    "name",
    ["..%2F..%2Fevil", "%2e%2e", "..", ".hidden", "a%00b", "a%2Fb", "a%5Cb", "%2Fetc%2Fpasswd", "x" * 101],
)
def test_no_file_name_leads_out_of_the_store(http: TestClient, tmp_path: Path, name: str) -> None:
    before = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    for digest in ("a" * 64, "..", "%2e%2e"):
        assert http.put(f"/artifacts/{digest}/{name}", content=b"x").status_code in (404, 405, 422)
        assert http.get(f"/artifacts/{digest}/{name}").status_code in (404, 405, 422)
    after = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    assert [path for path in after if "sqlite" not in path.name] == [
        path for path in before if "sqlite" not in path.name
    ]


def test_a_file_over_the_limit_is_refused_and_leaves_nothing(
    http: TestClient, settings: DeploySettings
) -> None:
    answer = http.put(f"/artifacts/{'a' * 64}/weights.safetensors", content=b"x" * 100_001)
    assert answer.status_code == 413
    assert not [path for path in settings.artifacts_dir.rglob("*") if path.is_file()]


def test_more_files_than_the_limit_are_refused(http: TestClient) -> None:
    answers = [http.put(f"/artifacts/{'a' * 64}/file-{i}", content=b"x").status_code for i in range(33)]
    assert answers == [204] * 32 + [413]


def test_whoever_changes_something_must_say_who_they_are(
    http: TestClient, make_artifact: Make, parts: Services, propose: Put
) -> None:
    propose(make_artifact("a"))
    del http.headers["X-Forgewatch-Actor"]
    assert http.post("/rollback", json={"reason": "x"}).status_code == 422
    assert (
        http.post("/rollback", json={"reason": "x"}, headers={"X-Forgewatch-Actor": "%00"}).status_code == 422
    )
    assert len(parts.ledger.events()) == 1


def test_an_actor_is_put_on_record_in_any_script(http: TestClient, make_artifact: Make, propose: Put) -> None:
    http.headers["X-Forgewatch-Actor"] = "J%C3%BCrgen%20%E6%9D%8E"
    propose(make_artifact("a"))
    assert http.get("/ledger").json()[0]["actor"] == "Jürgen 李"

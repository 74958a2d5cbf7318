"""What the views of updates, releases, verdicts, the record and people show, and what their forms do."""

from collections.abc import Callable
from typing import Any

import pytest

from deploy.releases import approval
from deploy.releases.approval import fold
from deploy.server.services import Services
from detector.release.artifact import MANIFEST, Artifact
from updater.records import Candidate


def _evaluation(services: Services, artifact: Artifact) -> str:
    return fold(services.ledger.events()).releases[artifact.digest].candidate.evaluation_digest


@pytest.fixture
def proposed(
    services: Services, make_artifact: Callable[..., Artifact], candidate_of: Callable[..., Candidate]
) -> Callable[..., Artifact]:
    """Proposes an artifact as the updater would."""

    def propose(**figures: Any) -> Artifact:
        artifact = make_artifact(**figures)
        for name in (*artifact.manifest.files, MANIFEST):
            with services.artifacts.upload(artifact.digest, name) as upload:
                upload.write((artifact.folder / name).read_bytes())
                upload.commit()
        candidate, evidence = candidate_of(artifact), services.artifacts.evidence(artifact.digest)
        services.ledger.append(
            lambda history: approval.propose(history, candidate, evidence, services.updater, "updater")
        )
        return artifact

    return propose


def test_every_view_to_go_to_is_there(page: Any) -> None:
    start = page.get("/")
    for line in start.text.split('<a href="')[1:]:
        path = line.partition('"')[0]
        if path.startswith("/"):
            assert page.get(path).status_code == 200, path


def test_an_update_is_asked_for_and_shown(page: Any, services: Services) -> None:
    shown = page.submit("/page/updates")
    assert shown.url.path == "/page/updates/1"
    assert "Update 1" in shown.text
    assert services.runs.get(1).state == "queued"
    assert '/page/updates/1"' in page.get("/page/updates").text
    assert page.get("/page/updates/9").status_code == 404


def test_a_release_is_looked_at_approved_and_taken_back(
    page: Any, proposed: Callable[..., Artifact], services: Services
) -> None:
    first = proposed()
    shown = page.get(f"/page/releases/{first.digest}").text
    assert "Approve and take live" in shown
    assert first.version in page.get("/page/releases").text
    after = page.submit(
        f"/page/releases/{first.digest}", do="approve", evaluation_digest=_evaluation(services, first)
    )
    assert after.status_code == 200
    live = fold(services.ledger.events()).live
    assert live is not None
    assert live.digest == first.digest
    assert "Who moved it" in after.text


def test_a_finding_wants_a_reason_and_what_was_typed_stays(
    page: Any, proposed: Callable[..., Artifact], services: Services
) -> None:
    weak = proposed(named=0.2)
    path = f"/page/releases/{weak.digest}"
    (finding,) = fold(services.ledger.events()).releases[weak.digest].candidate.findings
    assert finding.name in page.get(path).text
    form = {"do": "approve", "evaluation_digest": _evaluation(services, weak), "finding": finding.name}
    refused = page.submit(path, **form, why=" ")
    assert refused.status_code == 409
    assert "no reason was given for" in refused.text
    assert page.submit(path, **form, why="<b>our reals</b>").status_code == 200
    said = page.get(path).text
    assert "&lt;b&gt;our reals&lt;/b&gt;" in said
    assert fold(services.ledger.events()).live is not None


def test_a_stale_form_approves_nothing(
    page: Any, proposed: Callable[..., Artifact], services: Services
) -> None:
    release = proposed()
    path = f"/page/releases/{release.digest}"
    refused = page.submit(path, do="approve", evaluation_digest="0" * 64)
    assert refused.status_code == 409
    rejected = page.submit(path, do="reject", reason="too weak")
    assert "too weak" in rejected.text
    assert fold(services.ledger.events()).live is None


def test_what_was_done_stands_on_the_record(page: Any, services: Services) -> None:
    page.submit("/page/updates")
    assert "request update" in page.get("/page/record").text
    assert "request update" not in page.get("/page/record?action=label").text


def test_a_token_is_shown_once_and_ended(page: Any) -> None:
    made = page.submit("/page/people", name="ada", role="admin")
    assert made.status_code == 201
    token = made.text.partition('<p class="mono">')[2].partition("<")[0]
    assert token.startswith("fw_")
    # From now on nobody gets in without one.
    assert page.get("/page/people").status_code == 401
    page.headers["Authorization"] = f"Bearer {token}"
    listed = page.get("/page/people").text
    assert "ada" in listed
    assert token not in listed


def test_without_a_session_the_page_asks_for_a_token_and_leads_back(page: Any) -> None:
    made = page.submit("/page/people", name="ada", role="admin")
    token = made.text.partition('<p class="mono">')[2].partition("<")[0]
    asked = page.get("/page/record")
    assert asked.status_code == 401
    assert 'name="next" value="/page/record"' in asked.text
    wrong = page.post("/login", data={"token": "fw_wrong", "next": "/page/record"})
    assert wrong.status_code == 401
    assert "Your token" in wrong.text
    answer = page.post("/login", data={"token": token, "next": "/page/record"}, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/page/record")
    assert "__Host-" in answer.headers["set-cookie"]


def test_a_verdict_that_nobody_knows_is_one_line(page: Any) -> None:
    shown = page.get("/page/verdicts?id=forgewatch.media-0-99")
    assert shown.status_code == 404
    assert "no verdict forgewatch.media-0-99 is known" in shown.text


def test_the_api_is_described_without_anything_from_elsewhere(page: Any) -> None:
    shown = page.get("/docs")
    assert shown.status_code == 200
    assert "POST /releases/{digest}/approve" in shown.text
    assert "http://" not in shown.text
    assert "https://" not in shown.text
    assert "<script" not in shown.text

"""What the views of updates, releases, verdicts, the record and people show, and what their forms do."""

import html
import re
from pathlib import Path

import pytest

from deploy.access.roles import Person, TokenRequest
from deploy.releases.standing import replay
from memory.labels import label
from updater.evaluation_parts import SnapshotRow
from updater.records import Robustness

pytestmark = pytest.mark.slow


def _evaluation(services, artifact):
    return replay(services.ledger.events()).releases[artifact.digest].candidate.evaluation_digest


def test_every_view_to_go_to_is_there(page):
    start = page.get("/")
    for line in start.text.split('<a href="')[1:]:
        path = line.partition('"')[0]
        if path.startswith("/"):
            assert page.get(path).status_code == 200, path


def test_an_update_is_asked_for_and_shown(page, services):
    shown = page.submit("/page/updates")
    assert shown.url.path == "/page/updates/1"
    assert "Update 1" in shown.text
    assert services.runs.get(1).state == "queued"
    assert '/page/updates/1"' in page.get("/page/updates").text
    assert page.get("/page/updates/9").status_code == 404
    silent = page.submit("/page/updates/1", reason=" ")
    assert (silent.status_code, ">Cancel<" in silent.text) == (422, True)
    ended = page.submit("/page/updates/1", reason="mislabelled <b>").text
    assert "mislabelled &lt;b&gt;" in ended
    assert "Cancel it" not in ended


def test_a_release_is_looked_at_approved_and_taken_back(page, proposed, services):
    first = proposed()
    shown = page.get(f"/page/releases/{first.digest}").text
    assert "Approve and take live" in shown
    assert first.version in page.get("/page/releases").text
    approve(page, first, services)
    second = proposed(parent=first)
    second_path = f"/page/releases/{second.digest}"
    assert "retires then and can return by a rollback" in page.get(second_path).text
    assert ">History<" in approve(page, second, services).text
    assert live(services) == second.digest
    back = page.submit(second_path, do="roll back", reason="worse on our reals")
    assert "worse on our reals" in back.text
    assert live(services) == first.digest


def test_to_approve_and_to_take_live_are_two_forms(page, proposed, services):
    release, other = proposed(), proposed()
    path = f"/page/releases/{release.digest}"
    assert f"/page/releases/{other.digest}" in page.get(path).text  # it expires as this goes live
    assert "Take live" not in page.get(path).text
    approved = approve(page, release, services, do="approve")
    assert (live(services), "You approved it." in approved.text) == (None, True)
    assert page.submit(path, do="take live").status_code == 200
    assert live(services) == release.digest


def approve(page, release, services, do="approve and take live", **more):
    """Send the form of the release's view."""
    known = replay(services.ledger.events()).releases[release.digest]
    evaluation = known.candidate.evaluation_digest
    form = {"do": do, "evaluation_digest": evaluation, "ledger": known.ledger} | more
    answer = page.submit(f"/page/releases/{release.digest}", **form)
    assert answer.status_code == 200, answer.text
    return answer


def live(services):
    """The digest of what scores."""
    found = replay(services.ledger.events()).live
    return found and found.digest


def test_a_bound_within_the_interval_is_yellow_names_what_decides_and_wants_a_reason(
    page, proposed, services
):
    few = proposed(groups=20)
    path = f"/page/releases/{few.digest}"
    shown = page.get(path).text
    names = re.findall(r'name="unshown" value="([^"]+)"', shown)
    assert names
    assert 'tag bad">broken' not in shown
    assert shown.count('<span class="tag wait">not shown to hold</span>') == 2 * len(names)
    assert re.search(r"about \d+ more held-back groups would decide it", shown)
    form = {"do": "approve and take live", "evaluation_digest": _evaluation(services, few), "unshown": names}
    assert page.submit(path, **form, because=" ").status_code == 409
    assert live(services) is None
    assert page.submit(path, **form, because="few items").status_code == 200
    assert live(services) == few.digest


def test_a_finding_wants_a_reason_and_what_was_typed_stays(page, proposed, services):
    weak = proposed(named=0.2)
    path = f"/page/releases/{weak.digest}"
    (finding,) = replay(services.ledger.events()).releases[weak.digest].candidate.findings
    assert finding.name in page.get(path).text
    form = {
        "do": "approve and take live",
        "evaluation_digest": _evaluation(services, weak),
        "finding": finding.name,
    }
    refused = page.submit(path, **form, why=" ")
    assert refused.status_code == 409
    assert "no reason was given for" in refused.text
    assert page.submit(path, **form, why="<b>our reals</b>").status_code == 200
    said = page.get(path).text
    assert "&lt;b&gt;our reals&lt;/b&gt;" in said
    assert replay(services.ledger.events()).live is not None


def test_an_approval_takes_a_comment_and_an_older_release_comes_back_through_others(page, proposed, services):
    first = proposed()
    approve(page, first, services)
    second = proposed(parent=first)
    assert "looked at &lt;b&gt;forty" in approve(page, second, services, comment="looked at <b>forty").text
    third = proposed(parent=second)
    approve(page, third, services)
    path = f"/page/releases/{first.digest}"
    assert "Roll back to this release" not in page.get(f"/page/releases/{third.digest}").text
    assert page.submit(path, do="roll back to", reason=" ").status_code == 422
    assert live(services) == third.digest
    done = page.submit(path, do="roll back to", reason="both lose our reals")
    assert (done.status_code, live(services)) == (200, first.digest)


def test_what_a_release_fails_at_under_distortions_stands_above_its_figures_and_the_matrix_counts_items(
    page, proposed, services, monkeypatch
):
    release = proposed()
    path = f"/page/releases/{release.digest}"
    assert "fails under distortions" not in page.get(path).text
    made = services.evaluations.of(replay(services.ledger.events()).releases[release.digest])
    under = {"JPEG:3": {"real": 0.0, "blend": 0.9}, "noise:1": {"real": 0.9, "blend": 0.4}}
    found = Robustness(items={"real": 9, "blend": 9}, undistorted={"real": 1, "blend": 1}, distorted=under)
    matrix = {"real": {"real": 93, "unknown": 7}, "blend": {"blend": 9}}
    after = made.after.model_copy(update={"robustness": found, "confusion": matrix})
    monkeypatch.setattr(services.evaluations, "of", lambda _: made.model_copy(update={"after": after}))
    shown = html.unescape(re.sub(r"<[^>]*>", "", page.get(path).text))
    assert "fails under distortion: real under JPEG:3 0 % right; blend under noise:1 40 % right" in shown
    card = page.get(path).text.partition("Confusion matrix of held-back items")[2].partition("</table>")[0]
    assert (">93<" in card, "93 %" in card) == (True, False)


def test_a_stale_form_approves_nothing(page, proposed, services):
    release = proposed()
    path = f"/page/releases/{release.digest}"
    refused = page.submit(path, do="approve", evaluation_digest="0" * 64)
    assert refused.status_code == 409
    anew = page.submit(path, do="approve", evaluation_digest=_evaluation(services, release), ledger="0" * 64)
    assert (anew.status_code, "it was proposed anew since you looked at it" in anew.text) == (409, True)
    rejected = page.submit(path, do="reject", reason="too weak")
    assert "too weak" in rejected.text
    assert replay(services.ledger.events()).live is None


@pytest.mark.parametrize(
    ("form", "says"),
    [
        ({"do": "reject", "reason": " "}, "reason: "),
        ({"do": "roll back", "reason": ""}, "reason: "),
        ({"do": "approve", "evaluation_digest": "no digest"}, "evaluation_digest: "),
        ({"do": "approve", "evaluation_digest": "0" * 64, "ledger": "x"}, "ledger: "),
        ({"do": "approve", "finding": "f", "why": "x" * 1001}, "f: "),
    ],
)
def test_a_form_that_says_nothing_or_nonsense_is_one_line(page, proposed, services, form, says):
    path = f"/page/releases/{proposed().digest}"
    form = {"evaluation_digest": "0" * 64} | form
    refused = page.submit(path, **form)
    assert (refused.status_code, says in refused.text) == (422, True)
    assert len(services.ledger.events()) == 1


def test_what_was_done_stands_on_the_record(page, services):
    page.submit("/page/updates")
    assert "request update" in page.get("/page/record").text
    assert "request update" not in page.get("/page/record?action=label").text


def test_a_token_is_shown_once_and_ended(page, services):
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
    assert page.submit("/page/people", name="ada", revoke="true").status_code == 200
    assert page.get("/page/people").status_code == 401
    (entry,) = services.access.tokens.entries()
    assert entry.revoked_by == "ada"


def test_who_may_not_decide_sees_who_asked_and_no_form_and_is_told_so_in_the_page(page, proposed, services):
    release, root = proposed(), Person("root", frozenset({"admin"}), "token")
    for name, role in (("vic", "viewer"), ("bea", "approver")):
        made = services.access.tokens.add(TokenRequest(name=name, role=role, days=1), root)
        if name == "vic":
            page.headers["Authorization"] = f"Bearer {made.token}"
    path = f"/page/releases/{release.digest}"
    shown = page.get(path).text
    assert ("bea" in shown, "the schedule" in shown) == (True, True)
    assert "<button" not in shown.partition("<h2>Approval</h2>")[2].partition(">History<")[0]
    denied = page.post(path, data={"do": "take live"})
    assert denied.status_code == 403
    assert "vic (viewer) may not do this: it takes approver or admin" in denied.text
    assert ("Your token" in denied.text, "Releases" in denied.text) == (False, True)


def test_who_asked_is_told_why_another_must_approve_and_who_labelled_too(page, proposed, services, fill):
    row = SnapshotRow(
        exemplar="x", media_digest="0", family="real", split="train", group="g", source="s", label=1
    )
    label(services.memory, fill("a", 1), "real", "bea")
    release, root = proposed("ann", rows=[row]), Person("root", frozenset({"admin"}), "token")
    path = f"/page/releases/{release.digest}"
    shown = {}
    for name in ("ann", "bea"):
        made = services.access.tokens.add(TokenRequest(name=name, role="approver", days=1), root)
        page.headers["Authorization"] = f"Bearer {made.token}"
        shown[name] = page.get(path).text
    assert "ann asked for the update that made release" in shown["ann"]
    assert "Approve and take live" not in shown["ann"]
    assert "You gave 1 of the labels that it was trained on" in shown["bea"]
    assert "labelled: 1 of its labels" in approve(page, release, services, do="approve").text


def test_without_a_session_the_page_asks_for_a_token_and_leads_back(page):
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


def test_a_verdict_that_nobody_knows_is_one_line(page):
    shown = page.get("/page/verdicts?id=forgewatch.media-0-99")
    assert shown.status_code == 404
    assert "no verdict forgewatch.media-0-99 is known" in shown.text


def test_each_alert_leads_to_a_runbook_that_is_served_and_to_no_other_file(page):
    alerts = (Path(__file__).parents[3] / "helm/forgewatch/rules/alerts.yaml").read_text()
    leads = re.findall(r"runbook_url: helm/forgewatch(/runbooks/(\w+)\.md)", alerts)
    assert len(leads) > 20
    assert all(page.get(path).text.startswith(f"# {name}\n") for path, name in leads)
    for path in ("/runbooks/Other.md", "/runbooks/..%2FBACKUP.md", "/runbooks/%2Fetc%2Fissue.md"):
        assert page.get(path).status_code == 404


def test_the_api_is_described_without_anything_from_elsewhere(page):
    shown = page.get("/docs")
    assert shown.status_code == 200
    assert "POST /releases/{digest}/approve" in shown.text
    assert "http://" not in shown.text
    assert "https://" not in shown.text
    assert "<script" not in shown.text

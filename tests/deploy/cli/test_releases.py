"""The commands about releases against a real server in this process, without a broker."""

import re
from pathlib import Path

import pytest

from deploy.releases.ledger import Move
from deploy.releases.publish import make_moves
from deploy.releases.standing import replay
from deploy.rollout_records import Turn
from detector.release.artifact import EVALUATION

pytestmark = pytest.mark.slow


def test_an_operator_sees_the_evidence_approves_and_rolls_back(answered, proposed):
    first = proposed()
    shown = answered.json("release", first.digest[:8])
    assert shown["evaluation"]["classes"] == ["real", "blend"]
    assert "is live" in answered.ok("approve", first.digest[:8], "--as", "ada")
    second = proposed(first)
    assert answered.json("approve", second.digest, "--as", "Jürgen")["actor"] == "Jürgen"
    rows = {row["digest"]: row["state"] for row in answered.json("releases")}
    assert rows == {first.digest: "retired", second.digest: "live"}
    assert answered.json("rollback", "--reason", "worse")["digest"] == first.digest
    out = answered.ok("release", second.digest[:12])
    assert "rolled back" in out
    assert "worse" in out


def test_what_takes_a_release_back_needs_a_reason_here_and_at_the_api(answered, proposed, http):
    digest = proposed().digest
    answered.ok("approve", digest)
    for command in (("rollback",), *(("rollout", turn) for turn in ("hold", "resume", "back", "extend"))):
        assert "--reason" in answered.fails(*command, code=2)
    for path in ("/rollback", "/rollouts/turn?action=hold", "/rollouts/waive", f"/releases/{digest}/reject"):
        for reason in ({}, {"reason": ""}, {"reason": " \n\u2003"}):
            assert http.post(path, json={"digest": digest, "check": "x", **reason}).status_code == 422
    assert answered.json("releases")[0]["state"] == "live"


def test_an_update_is_cancelled_with_a_reason(answered, services):
    assert "go together" in answered.fails("update", "--cancel", "1", code=2)
    assert "go together" in answered.fails("update", "--reason", "x", code=2)
    assert "no update 1" in answered.fails("update", "--cancel", "1", "--reason", "x")
    services.runs.request("slot", "manual", "ada")
    said = answered.ok("update", "--cancel", "1", "--reason", "mislabelled", "--as", "ada")
    assert "update 1 is refused: cancelled by ada: mislabelled" in said
    assert "has ended" in answered.fails("update", "--cancel", "1", "--reason", "x")


def test_to_approve_alone_and_to_promote_are_two_commands(answered, proposed):
    short = proposed().digest[:12]
    said = answered.ok("approve", short, "--only", "--as", "ada")
    assert f"`forgewatch promote {short}` begins its rollout" in said
    assert f"{short} (approved by ada, not live)" in answered.ok("status")
    assert "counts until" in answered.ok("release", short)
    assert f"{short} is live" in answered.ok("promote", short, "--as", "bea")
    assert "promote is for a release that is approved" in answered.fails("promote", short)


def test_where_two_must_approve_the_first_is_told_so(answered, proposed, services, settings):
    object.__setattr__(services.access, "settings", settings.model_copy(update={"approvals": 2}))
    short = proposed().digest[:12]
    said = answered.ok("approve", short, "--as", "ada")
    assert "it does not score yet: another person must approve it too" in said
    assert f"{short} is live" in answered.ok("approve", short, "--as", "bea")


FINDING = "share of blend named"


def test_findings_are_shown_and_taken_with_a_reason_each(answered, proposed):
    short = proposed(named=0.1).digest[:12]
    assert f"{short} (with findings: {FINDING})" in answered.ok("status")
    assert "proposed with findings" in answered.ok("releases")
    assert re.search(
        rf"finding: {FINDING}: 0\.1 \[.*\] of 1000 groups, bound 0\.5, broken", answered.ok("release", short)
    )
    assert f'--accept "{FINDING}=WHY"' in answered.fails("approve", short)
    assert "is not FINDING=WHY" in answered.fails("approve", short, "--accept", FINDING, code=2)
    assert "is no finding" in answered.fails("approve", short, "--accept", "nonsense=why")
    assert "is live" in answered.ok("approve", short, "--accept", f"{FINDING}=rare here", "--as", "ada")
    assert f"accepted {FINDING}: rare here" in answered.ok("release", short)


def test_one_reason_takes_all_that_is_not_shown_to_hold_and_nothing_that_is_broken(answered, proposed):
    broken = proposed(named=0.1).digest[:12]
    assert "no reason was given" in answered.fails("approve", broken, "--because", "few items")
    few = proposed(groups=20).digest[:12]
    assert "no reason was given" in answered.fails("approve", few)
    shown = answered.ok("release", few)
    assert "not shown to hold: about" in shown
    assert "is live" in answered.ok("approve", few, "--because", "few items", "--as", "ada")
    (_, approved, *_) = answered.json("release", few)["history"]
    assert set(approved["accepted"].values()) == {"few items"}


def test_at_a_terminal_a_reason_is_asked_for_each_finding_that_has_none(answered, proposed, monkeypatch):
    short = proposed(named=0.1).digest[:12]
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("typer.prompt", lambda question: f"asked: {question}")
    assert "is live" in answered.ok("approve", short)
    history = answered.json("release", short)["history"]
    assert history[1]["accepted"] == {FINDING: f"asked: why do you accept '{FINDING}'?"}


def test_reject_is_for_good(answered, proposed):
    artifact = proposed()
    assert answered.json("reject", artifact.digest[:6], "--reason", "forgets")["state"] == "rejected"
    assert "rejected" in answered.fails("approve", artifact.digest[:6])


def test_an_ambiguous_or_unknown_prefix_is_refused(answered, proposed, services):
    digests = [proposed().digest for _ in range(17)]
    # Of 17 digests two begin alike.
    shared = next(d[0] for d in digests if sum(other[0] == d[0] for other in digests) > 1)
    assert "releases begin" in answered.fails("release", shared)
    assert "no release begins" in answered.fails("release", "zz")
    assert len(services.ledger.events()) == 17


def test_a_changed_byte_is_told_in_one_line(answered, proposed, settings):
    artifact = proposed()
    (Path(settings.artifacts_url) / artifact.digest / EVALUATION).write_text("{}")
    assert EVALUATION in answered.fails("approve", artifact.digest[:8])


def test_what_a_rollback_takes_back_is_shown_until_each_verdict_has_its_outcome(answered, proposed, services):
    first = proposed()
    answered.ok("approve", first.digest)
    kept = proposed(first)
    answered.ok("approve", kept.digest)
    bad = proposed(kept)
    answered.ok("approve", bad.digest)
    assert answered.json("retractions") == []
    answered.ok("rollback", "--reason", "worse")
    (begun,) = answered.json("retractions")
    assert (begun["release"], begun["state"], begun["left"]) == (bad.digest, "waiting", None)
    assert f"{bad.digest[:12]}: It waits until its outcomes are read." in answered.ok("retractions")
    assert f"verdicts of {bad.digest[:12]} are taken back: It waits" in answered.ok("status")
    answered.ok("rollback", "--keep-verdicts", "--reason", "worse")
    assert len(answered.json("retractions")) == 1, "what is kept is not taken back"

    turn = Turn(outcomes={"same": 5, "corrected": 2, "withdrawn": 1})
    evidence = replay(services.ledger.events()).releases[bad.digest].candidate.evaluation_digest
    end = Move("test", "retracted", bad.digest, evidence, rollout=turn)
    make_moves(services.ledger, services.publisher, lambda _: [end])
    (ended,) = answered.json("retractions")
    assert (ended["state"], ended["number"], ended["ended"] is not None) == ("done", begun["number"], True)
    assert ended["says"] == "Each of 8 verdicts has its outcome."
    cells = next(line for line in answered.ok("retractions").splitlines() if bad.digest[:12] in line)
    assert [cell for cell in cells.split() if cell.isdigit()] == ["5", "2", "1"]

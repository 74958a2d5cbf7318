"""A release with findings: it waits for a person, and goes live only with a reason for each."""

from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from deploy.releases.four_eyes import ApprovalError
from deploy.releases.ledger import Move
from deploy.releases.standing import replay

A = "a" * 64
NewHistory = Callable[..., Any]
"""Makes a conftest.History of wishes."""

NAMED = "share of blend named"


@pytest.fixture
def with_findings(new_history: NewHistory) -> Any:
    """A history in which A waits with a finding: too few of its family are named."""
    history = new_history()
    history.named = 0.1
    assert history.wish("propose", A)
    return history


def approved(history: Any, accept: dict[str, str]) -> list[Move]:
    return history.approve(A, accept=accept)


def test_a_candidate_of_which_a_gate_does_not_hold_waits_as_proposed_with_findings(
    with_findings: Any,
) -> None:
    release = replay(with_findings.events).releases[A]
    assert (release.state, [gate.name for gate in release.candidate.findings]) == (
        "proposed with findings",
        [NAMED],
    )
    assert with_findings.moves("propose", A) == []


def test_a_finding_without_a_reason_is_not_approved_and_the_line_names_it(with_findings: Any) -> None:
    with pytest.raises(
        ApprovalError, match=rf'no reason was given for: {NAMED}: 0\.1.*--accept "{NAMED}=WHY"'
    ):
        approved(with_findings, {})
    with pytest.raises(ValidationError, match=NAMED):
        approved(with_findings, {NAMED: "  "})
    assert not with_findings.wish("promote", A)


def test_a_reason_for_what_is_no_finding_is_refused(with_findings: Any, new_history: NewHistory) -> None:
    with pytest.raises(ApprovalError, match=f"'nonsense' is no finding .* its findings are '{NAMED}'"):
        approved(with_findings, {NAMED: "few items", "nonsense": "why"})
    with pytest.raises(ApprovalError, match="it has no findings"):
        approved(new_history(("propose", A)), {NAMED: "few items"})


def test_with_a_reason_for_each_finding_it_is_approved_and_the_move_keeps_them(with_findings: Any) -> None:
    (move,) = approved(with_findings, {NAMED: "few items"})
    assert (move.actor, move.accepted) == ("ada", {NAMED: "few items"})
    with_findings.force(move)
    assert replay(with_findings.events).releases[A].state == "approved"
    assert with_findings.wish("promote", A)


@pytest.mark.parametrize("action", ["reject", "expire"])
def test_a_proposal_with_findings_may_be_refused_and_may_expire(with_findings: Any, action: Any) -> None:
    with_findings.force(Move("ada", action, A, "e" * 64))
    assert (
        replay(with_findings.events).releases[A].state == {"reject": "rejected", "expire": "expired"}[action]
    )

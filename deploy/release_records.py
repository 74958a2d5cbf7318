"""What the API says of releases: their states and moves, an approval, the ledger. Light: every client
imports it."""

from collections.abc import Mapping
from datetime import datetime
from typing import Literal

from pydantic import AwareDatetime, BaseModel, Field

from deploy.rollout_records import Plan, Reason, Turn
from updater.records import Candidate

State = Literal[
    "proposed",
    "proposed with findings",
    "approved",
    "shadow",
    "canary",
    "rejected",
    "expired",
    "live",
    "retired",
    "rolled back",
]

STATES: Mapping[State, str] = {
    "proposed": "It waits for an operator.",
    "proposed with findings": "It waits for an operator who says why each finding is accepted.",
    "approved": "An operator agreed to exactly these bytes; it does not score yet.",
    "shadow": "It scores a share of the items beside the live release; none of its answers goes out.",
    "canary": "It answers a share of the items, and scores them and more beside the live release.",
    "rejected": "An operator said no, for good.",
    "expired": "The release that it was compared with no longer scores; propose it again once that is back.",
    "live": "It scores.",
    "retired": "A later release took its place; a rollback may bring it back.",
    "rolled back": "An operator or a failed check took it out of service; it may be proposed again.",
}
"""Every state of a release, in one sentence each."""

PROPOSED: tuple[State, ...] = ("proposed", "proposed with findings")
"""What waits for an operator's first word."""
WAITING: tuple[State, ...] = (*PROPOSED, "approved")
"""What waits for a person: to be approved, by another one too, or to be taken live."""

ON_TRIAL: tuple[State, ...] = ("shadow", "canary")

Action = Literal[
    "propose",
    "approve",
    "begin",
    "step",
    "hold",
    "resume",
    "back to shadow",
    "inconclusive",
    "extend",
    "waive",
    "judge",
    "promote",
    "reject",
    "expire",
    "rollback",
    "retracted",
    "raise epoch",
]
"""propose: a candidate asks. approve: a person agreed to these bytes. begin: its rollout begins, in shadow.
step: it goes a step on, and answers a larger share. hold, resume: a person holds it there, or no longer.
back to shadow: a person takes its answers back. inconclusive: so does the evidence, and it waits for a
person. extend: one gives it more time. waive: one takes a check away, with a reason. judge: one says what
shared items are. promote: it goes live. reject: a person said no. expire: another release than its parent is
live now. rollback: the release on trial is taken out, or the live one, and the one before it answers.
retracted: every verdict of a release that was taken out has its outcome. raise epoch: no release moves; the
releases topic held another rollout, which this ledger's is to outrank."""


class Bound(BaseModel, frozen=True):
    """What an approval binds beside the artifact's and the evaluation's digest, and until when it counts."""

    ledger: str = Field(description="hash of the ledger's row that proposed the release: of all until then")
    snapshot: str | None = Field(description="SHA-256 of the training snapshot; null where there is none")
    expires_at: AwareDatetime = Field(description="from then on it counts for nothing")
    labelled: int = Field(description="labels of the approver that the release learnt from")
    plan: Plan | None = Field(None, description="by which steps it goes live")
    token_by: str | None = Field(
        None,
        description="who gave a token, over any number of hands, both to the approver and to who asked for"
        " the update: these may be one person; null: nobody did",
    )


class Approval(Bound):
    """One person's approval of a release."""

    actor: str
    at: AwareDatetime
    artifact: str = Field(description="the release's digest")
    evaluation: str = Field(description="SHA-256 of its evaluation.json")


class Release(BaseModel, frozen=True):
    """One artifact with its candidate record, its state and the person who last moved it."""

    digest: str
    state: State
    candidate: Candidate
    since: AwareDatetime
    actor: str = Field(description="who moved it into this state")
    reason: str | None = None
    sequence: int = Field(description="the ledger's sequence number of that move")
    requested_by: str | None = Field(None, description="who asked for its update; null where nobody did")
    proposed_by: str = Field("", description="who put it to the ledger: the updater, or a person")
    ledger: str = Field("", description="hash of the ledger's row that proposed it, which an approval binds")
    approvals: tuple[Approval, ...] = Field(
        (), description="since it was proposed; one that has expired counts for nothing"
    )


class Approve(BaseModel):
    """What an approval binds besides the release's digest."""

    evaluation_digest: str = Field(
        pattern="^[0-9a-f]{64}$", description="SHA-256 of the evaluation.json that you looked at"
    )
    accept: dict[str, Reason] = Field({}, description="for each finding, by its gate, why you accept it")
    ledger: str | None = Field(
        None,
        pattern="^[0-9a-f]{64}$",
        description="the release's `ledger` when you looked at it; 409 where it was proposed anew since",
    )
    promote: bool = Field(True, description="begin its rollout too, once enough people approved")
    comment: str | None = Field(None, max_length=1000, description="notes beside the approval")
    plan: str | None = Field(
        None,
        max_length=200,
        description="its plan, as text, such as `25,5,25,100` or `now`; null: the setting's",
    )


class Because(BaseModel):
    """Why a person does it."""

    reason: Reason


class TakeOut(BaseModel):
    """Which release is taken out of service, why, and whether its verdicts are taken back."""

    reason: Reason
    digest: str | None = Field(
        None,
        pattern="^[0-9a-f]{64}$",
        description="the release on trial, or the live one; 409 where it is neither. null: the one on trial,"
        " and the live one where none is",
    )
    retract: bool = Field(True, description="score anew the items that it answered")


class LedgerEntry(BaseModel):
    """One event of the ledger."""

    sequence: int
    at: datetime
    actor: str
    action: Action
    digest: str = Field(description="of the release that moved; empty where the epoch was raised")
    reason: str | None
    accepted: dict[str, str] | None = Field(None, description="of an approval: findings taken, and why")
    requested_by: str | None = Field(None, description="of a proposal: who asked for its update")
    bound: Bound | None = Field(None, description="of an approval: the conditions that it binds")
    rollout: Turn | None = Field(None, description="of a move of a rollout: its details")


class ReleaseDetail(Release):
    """A release with every event that names it, oldest first."""

    history: tuple[LedgerEntry, ...]
    lacking: int = Field(1, description="so many more approvals it takes, each of another person, to go live")

"""The record that deploy owns: an artifact on its way to live, and back."""

from collections.abc import Mapping
from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from updater.records import Candidate

State = Literal["proposed", "approved", "rejected", "expired", "live", "retired", "rolled back"]

STATES: Mapping[State, str] = {
    "proposed": "It waits for an operator.",
    "approved": "An operator agreed to exactly these bytes; it does not score yet.",
    "rejected": "An operator said no, for good.",
    "expired": "What it was measured against no longer scores; it may be proposed again once that is back.",
    "live": "It scores.",
    "retired": "A later release took its place; a rollback may bring it back.",
    "rolled back": "An operator took it out of service; it may be proposed again.",
}
"""Every state of a release, in one sentence each."""

Action = Literal["propose", "approve", "promote", "reject", "expire", "rollback", "raise epoch"]
"""propose: a candidate asks. approve: a person agreed to these bytes. promote: it goes live.
reject: a person said no. expire: another release than its parent is live now. rollback: the live release is
taken out and the one before it returns. raise epoch: no release moves; the releases topic held another
rollout, which this ledger's is to outrank."""


class Release(BaseModel):
    """One artifact with its candidate record, its state and the person who last moved it."""

    model_config = ConfigDict(frozen=True)

    digest: str
    state: State
    candidate: Candidate
    since: AwareDatetime
    actor: str = Field(description="who moved it into this state")
    reason: str | None = None
    sequence: int = Field(description="the ledger's sequence number of that move")

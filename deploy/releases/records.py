"""The record that deploy owns: an artifact on its way to live, and back."""

from typing import Literal, get_args

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from updater.records import Candidate

State = Literal["proposed", "approved", "rejected", "live", "retired", "rolled back"]
"""proposed: waits for an operator. approved: an operator agreed to exactly these bytes.
rejected: an operator said no. live: it scores. retired: a later release took its place.
rolled back: an operator took it out of service."""

STATES: tuple[State, ...] = get_args(State)


Action = Literal["propose", "approve", "promote", "reject", "rollback"]
"""propose: a candidate asks. approve: a person agreed to these bytes. promote: it goes live.
reject: a person said no. rollback: the live release is taken out and the one before it returns."""


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

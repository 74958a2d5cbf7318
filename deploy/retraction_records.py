"""What the API says of releases that are taken back. Light: every client imports it."""

from collections.abc import Mapping
from typing import Literal

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

RetractionState = Literal["reading", "settling", "waiting", "done"]
"""reading: verdicts are scored anew. settling: all are; it ends once no worker can have answered by the
release any more. waiting: nothing can be scored anew now. done: every verdict has its outcome."""

OUTCOMES = ("same", "corrected", "withdrawn")
"""What may become of a verdict that is taken back."""


class RetractionView(BaseModel):
    """A release that is or was taken back, and how far that is."""

    model_config = ConfigDict(frozen=True)

    number: int = Field(description="sequence number of the ledger's row that began it")
    release: str = Field(description="digest of the release that was taken back")
    since: AwareDatetime | None = Field(None, description="none of its verdicts is older; null: it is done")
    began: AwareDatetime = Field(description="when the release was taken out")
    state: RetractionState
    says: str = Field(description="the condition that it waits for, or its outcome, in one sentence")
    outcomes: Mapping[str, int] = Field(description="verdicts by outcome: same, corrected, withdrawn")
    left: int | None = Field(
        None, description="records of the verdicts topic that are still to be read; null: not known, or done"
    )
    ended: AwareDatetime | None = None
    problem: str | None = Field(None, description="why it cannot be followed now")

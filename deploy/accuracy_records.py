"""What the API answers about accuracy, and takes of an audit. Light: every client imports it."""

from pydantic import AwareDatetime, BaseModel, Field

from memory.estimate.records import Accuracy
from updater.records import Power


class AccuracyReport(BaseModel):
    """How accurate a release's verdicts were in the last days, and what is not in that."""

    accuracy: Accuracy
    power: Power | None = Field(
        description="of forgeries of a family never seen, which no estimate here knows: the release's own"
        " measure of how many it would not call real; null where it has none"
    )


class AuditItem(BaseModel):
    """A verdict that was drawn for the audit and waits; what it says is told once it is labelled."""

    id: str = Field(description="topic-partition-offset of the item")
    source: str
    at: AwareDatetime
    media_digest: str = Field(description="SHA-256 of the media")


class AuditLabel(BaseModel):
    """What a person says of an audited item."""

    id: str = Field(min_length=1, max_length=300)
    label: str = Field(max_length=64, description="real, a family, or cannot-say")


class AuditDone(BaseModel):
    """An audited verdict, and what it had said."""

    id: str
    release: str
    called: str = Field(description="the verdict's label: real, or a family")
    probability: float = Field(description="that it is right, as the release has it")
    label: str
    instead_of: str | None = Field(None, description="the label that this one replaced")

"""The record that the updater owns: a trained model that asks to become a release."""

from pydantic import BaseModel, ConfigDict, Field


class Gate(BaseModel):
    """One condition that a candidate must meet before it can be proposed."""

    model_config = ConfigDict(frozen=True)

    name: str
    value: float
    bound: float
    holds: bool


class Candidate(BaseModel):
    """A trained artifact with its evaluation. An approval binds both digests."""

    model_config = ConfigDict(frozen=True)

    digest: str = Field(description="the artifact's digest: SHA-256 of its manifest's bytes")
    evaluation_digest: str = Field(description="SHA-256 of evaluation.json's bytes")
    parent: str | None = Field(description="digest of the live release it was compared with")
    update: int = Field(description="the updater's run that made it")
    classes: tuple[str, ...]
    gates: tuple[Gate, ...]

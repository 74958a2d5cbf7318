"""Records of the estimated accuracy of verdicts. Light: every client imports it."""

from dataclasses import dataclass, field
from datetime import datetime

from pydantic import AwareDatetime, BaseModel, Field

KEPT_DAYS = 90
"""for which sums and audited verdicts are kept"""

LEAST_AUDITED = 20
"""labelled drawn verdicts before a share is told"""


@dataclass(frozen=True)
class Share:
    """A share in 0..1, and an interval around it."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Estimate:
    """Of some verdicts, the share whose class is the very right one. None: there is no such verdict."""

    items: int
    audited: int
    cannot_say: int
    """of the audited"""
    audited_items: int
    """of the verdicts, how many the audit speaks for"""
    lacking: int
    """drawn items that must be labelled before a share is told; 0: it is"""
    corrected: Share | None
    """by the audit; None while any is lacking: it is not known"""

    @property
    def not_known(self) -> str:
        return f"not known: label {self.lacking} drawn items to find out"


@dataclass(frozen=True)
class Accuracy:
    """Of a release's verdicts of some days. Unknown ones are counted apart: neither right nor wrong."""

    release: str
    since: datetime
    through: datetime | None
    """the end of the last day of which all that was drawn is labelled; None: there is none"""
    unknown: int
    over_all: Estimate
    classes: dict[str, Estimate]
    """by what was said: of those called real, the share that is real"""
    sources: dict[str, Estimate]
    """those with most verdicts; "" has what came from too many sources a day"""
    declared: dict[str, int] = field(default_factory=dict)
    """verdicts on media that declares generation, by the label of the pixels; in no figure above where the
    declaration decided"""


class AuditItem(BaseModel):
    """A verdict that was drawn for the audit and waits; what it says is told once it is labelled."""

    id: str = Field(description="topic-partition-offset of the item")
    source: str
    at: AwareDatetime
    media_digest: str = Field(description="SHA-256 of the media")


class AuditDone(BaseModel):
    """An audited verdict, and what it had said."""

    id: str
    release: str
    called: str = Field(description="the verdict's label: real, or a family")
    probability: float = Field(description="that it is right, as the release has it")
    label: str
    instead_of: str | None = Field(None, description="the label that this one replaced")

"""The records of a candidate's gates: each condition, what was forgotten, the items that count against it."""

from collections.abc import Sequence
from typing import Literal

from pydantic import BaseModel, Field, computed_field

GateState = Literal["holds", "not shown to hold", "broken"]
"""holds: the whole interval lies within the bound. broken: the whole interval lies beyond it."""


class Gate(BaseModel, frozen=True):
    """One condition on a candidate. One that does not hold is a finding, which an approver accepts or not.

    It holds where its whole interval lies within the bound; without an interval nothing is shown.
    """

    name: str
    value: float | None = Field(description="None where it could not be measured")
    bound: float
    holds: bool
    low: float | None = Field(None, description="of the value's interval, 95 % confidence in either end")
    high: float | None = Field(None, description="of the same")
    groups: int | None = Field(None, description="n: groups that the interval rests on")
    measured: str | None = Field(None, description="figure, interval and n in words, if not by groups")
    items: tuple[str, ...] = Field((), description="some behind a finding, by id, the worst first")
    mends: str | None = Field(None, description="a finding's remedy, for a person; None where it holds")
    decides: int | None = Field(
        None,
        description="groups, held back besides, at which this value would be shown or broken; None: none",
    )

    @computed_field  # type: ignore[prop-decorator]  # pydantic's own way
    @property
    def state(self) -> GateState:
        """One of an older release that counted as holding with the bound inside its interval is not shown."""
        low, high = self.low, self.high
        if self.value is None or low is None or high is None or low < self.bound < high:
            return "not shown to hold"
        if self.holds:
            return "holds"
        return "not shown to hold" if self.bound in (low, high) else "broken"

    def status(self) -> str:
        """Return the state for a person, with the number of groups that would decide it."""
        if self.state != "not shown to hold" or self.value is None:
            return self.state
        by = f"about {self.decides} more held-back groups" if self.decides else "no number of items"
        return f"{self.state}: {by} would decide it"

    def format(self, number: str) -> str:
        """Return the value for a person with its interval and n, its numbers formatted so."""
        if self.value is None:
            return "not measured"
        value = f"{self.value:{number}}"
        if self.measured:
            return self.measured
        if self.low is None or self.high is None:
            return value
        return f"{value} [{self.low:{number}} to {self.high:{number}}] of {self.groups} groups"


class Forgotten(BaseModel, frozen=True):
    """By how much the share named of the live release's families fell, as a fraction; negative: it rose."""

    low: float = Field(description="it fell at least so far, by 95 % confidence; -1..1")
    high: float = Field(description="it fell at most so far, by 95 % confidence; -1..1")
    groups: int = Field(description="of these families' held-back items")
    by_family: dict[str, float] = Field(description="by how much each fell")


class Behind(BaseModel, frozen=True):
    """The held-back items behind a gate's value: those that it counts against the candidate."""

    items: tuple[str, ...] = Field(description="some of them by id, the worst first")
    sources: dict[str, int] = Field(description="how many there are of each source, the most first")


def said_of_findings(findings: Sequence[Gate]) -> str:
    """Return the findings for a person: each gate with its value, interval, n, bound and state."""
    return "; ".join(
        f"{gate.name}: {gate.format('.4g')}, bound {gate.bound:.4g}, {gate.status()}" for gate in findings
    )

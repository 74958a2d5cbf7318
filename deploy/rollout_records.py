"""What the API says of a rollout: its plan, where it stands, what its checks say. Light: every client imports
it."""

from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Literal, Self

from pydantic import AwareDatetime, BaseModel, Field, StringConstraints

from updater.records import DeclaredRecall

Share = Annotated[float, Field(gt=0, le=1)]
Reason = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=1000)]
"""Why a person does something, for the record."""


class Plan(BaseModel, frozen=True):
    """By which steps a release comes to answer everything. Part of what an approval binds.

    Its text form: the share that shadow scores twice, then the shares that the canary answers, in percent,
    such as `25,5,25,100`; `now` has no step at all.
    """

    shadow: Share = Field(0.25, description="share of the items that both releases score, at least")
    canary: tuple[Share, ...] = Field(
        (0.05, 0.25, 1.0), description="share of the items that the challenger answers, step by step"
    )
    minutes: float = Field(10.0, ge=0, description="a step lasts at least so long")
    answers: int = Field(500, ge=0, description="a step of the canary has at least so many answers by it")

    @property
    def now(self) -> bool:
        """Whether it takes a release live at once."""
        return not self.canary

    def shares(self, step: int) -> tuple[float, float]:
        """Which share both score at a step, and which the challenger answers. 0: the shadow."""
        answered = self.canary[step - 1] if step else 0.0
        return max(self.shadow, answered), answered

    @classmethod
    def parse(cls, text: str, minutes: float, answers: int) -> Self:
        """Return the plan that a text says. Raises ValueError, in one line."""
        if text.strip() == "now":
            return cls(shadow=1.0, canary=(), minutes=0, answers=0)
        try:
            shadow, *canary = (float(part) / 100 for part in text.split(","))
        except ValueError:
            shadow, canary = 0.0, []
        shares = (shadow, *canary)
        rising = all(share < other for share, other in pairwise(canary))
        if not canary or not rising or canary[-1] != 1 or not all(0 < share <= 1 for share in shares):
            raise ValueError(
                f"{text!r} is no plan: give `now`, or the shadow's share and the canary's rising ones up to"
                " 100, in percent, such as 25,5,25,100"
            )
        return cls(shadow=shadow, canary=tuple(canary), minutes=minutes, answers=answers)

    def __str__(self) -> str:
        return ",".join(f"{100 * share:g}" for share in (self.shadow, *self.canary)) if self.canary else "now"


CheckState = Literal["passed", "undecided", "failed", "inconclusive", "not measured", "look", "waived"]
"""passed: below its bound at 95 %. undecided: more items will say. failed: above it, at its part of 1 in 100.
inconclusive: only one source, or new names, say so. not measured: too few such items came. look: a person's
labels decide. waived: an approver said why it is not asked for."""


class Check(BaseModel, frozen=True):
    """One share, or difference of shares, of the shared items, and what the evidence says of it."""

    name: str
    counted: int = Field(description="items that count for it; of a difference, against the challenger")
    counter: int = Field(0, description="of a difference: items that count for the challenger")
    items: int = Field(description="items that it looks at")
    units: int = Field(description="so many stretches of 10 seconds of one source they came in")
    share: float | None = Field(None, description="mean over those; null before the first")
    low: float = Field(description="the share is at least so high; holds at any time at 95 %")
    high: float = Field(description="the share is at most so high; holds at any time at 95 %")
    tolerated: float
    state: CheckState
    reason: str | None = Field(None, description="why it was waived, or the evidence of one source alone")

    @property
    def has_changed(self) -> bool:
        """Whether the share was not the same all the time: no share is left that would explain what came."""
        return self.low > self.high


class Expected(BaseModel, frozen=True):
    """What an evaluation lets one check expect, by held-back items of the classes that both releases know."""

    check: str
    counted: int = Field(description="held-back items that count against the challenger, net")
    items: int = Field(description="of so many; 0: the evaluation does not say")
    share: float | None
    tolerated: float
    units: int | None = Field(
        description="so many stretches of 10 seconds of one source with an item of each check let it pass, or"
        " fewer; null: none do"
    )
    asks: bool = Field(False, description="it asks for labels and does not fail")

    @property
    def beyond(self) -> bool:
        """Whether the share is over the tolerated one: the rollout is expected to fail, or to ask."""
        return self.share is not None and self.share > self.tolerated

    @property
    def never(self) -> bool:
        """Whether so high a share does not fail, and is never shown to be within its bound."""
        return self.units is None and not self.asks and not self.beyond


class Trial(BaseModel, frozen=True):
    """The release on trial, by the ledger: the challenger of the one that is live."""

    number: int = Field(0, description="sequence number of the ledger's row that began it")
    release: str
    champion: str
    plan: Plan
    began: AwareDatetime
    step: int = Field(0, description="0: shadow. n: the n-th share of the plan's canary")
    since: AwareDatetime = Field(description="when this step, or its last extension, began")
    steps: tuple[AwareDatetime, ...] = Field((), description="when each step of the canary began, so far")
    held: bool = Field(False, description="a person holds it at its step")
    extended: bool = Field(False, description="a person gave it more time, which may be done once")
    inconclusive: str | None = Field(None, description="why it waits for a person, back in shadow")
    asked: bool = Field(False, description="it was inconclusive before, and a person let it go on")
    judged: int = Field(0, description="disagreements labelled since it is inconclusive")
    waived: Mapping[str, str] = Field({}, description="checks that an approver waived, with the reason")
    without: Mapping[str, str] = Field({}, description="sources that an approver left out, with the reason")
    labels: Mapping[str, str] = Field({}, description="people's labels of shared items, by id: real or not")
    judges: Mapping[str, tuple[str, ...]] = Field({}, description="who called each so, by id")

    @property
    def shares(self) -> tuple[float, float]:
        """Which share both score, and which the challenger answers."""
        return self.plan.shares(self.step)


class Turn(BaseModel, frozen=True):
    """What a move of a rollout says besides: only what belongs to the move is not null."""

    plan: Plan | None = Field(None, description="of `begin`")
    step: int | None = Field(None, description="of `step`: the one that begins")
    checks: tuple[Check, ...] | None = Field(None, description="what the move rests on")
    check: str | None = Field(None, description="of `waive`: the check's name")
    source: str | None = Field(None, description="of `waive`: the source that is left out")
    labels: Mapping[str, str] | None = Field(None, description="of `judge`: by the item's id")
    retract: bool | None = Field(None, description="of `rollback`: whether its verdicts are taken back")
    outcomes: Mapping[str, int] | None = Field(None, description="of `retracted`: verdicts by outcome")


class Disagreement(BaseModel):
    """A shared item: where it lies and what both said of it."""

    id: str
    source: str
    digest: str = Field("", description="SHA-256 of its media, hexadecimal")
    champion: str = Field(description="real, unknown, error, or a family")
    challenger: str
    label: str | None = Field(None, description="a person's label")

    @property
    def contradicts(self) -> bool:
        """Whether the label is neither release's word."""
        return self.label is not None and self.label not in (self.champion, self.challenger)


class RolloutView(BaseModel):
    """A rollout as it stands: what the ledger says, and what the comparisons show."""

    trial: Trial | None = Field(description="null where no release is on trial")
    says: str = Field(description="the condition that it waits for, or its next step, in one sentence")
    problem: str | None = Field(None, description="why the comparisons cannot be read now")
    checks: tuple[Check, ...] = ()
    shared: int = Field(0, description="comparisons since it began")
    answered: int = Field(0, description="of this step, answers by the challenger")
    left_out: Mapping[str, int] = Field({}, description="shared items that were not compared, by the reason")
    contradictions: Mapping[str, int] = Field(
        {}, description="labels that are neither release's word, by the item's source"
    )
    table: Mapping[str, Mapping[str, int]] = Field(
        {}, description="shared items by the champion's label, then the challenger's"
    )
    model_s: Mapping[str, tuple[float, float]] = Field(
        {}, description="seconds of the model an item, by champion and challenger: median and 95th percentile"
    )

    declared: Mapping[str, DeclaredRecall] = Field(
        {}, description="of shared items that declare generation, by champion and challenger"
    )

    @property
    def needs_person(self) -> bool:
        """Whether it does not go on before a person labels, waives, extends or rolls back."""
        questioned = any(check.state == "look" for check in self.checks)
        return self.trial is not None and (questioned or self.trial.inconclusive is not None)


class Act(BaseModel):
    """What a person does with the rollout."""

    digest: str = Field(pattern="^[0-9a-f]{64}$", description="the release on trial that you looked at")
    reason: Reason


class Waive(Act):
    """A check that is not asked for, or a source whose items are left out, and why."""

    check: str = Field(min_length=1, max_length=1024)
    of_source: bool = Field(False, description="`check` is a source, or `new names`: all without a history")


class Judge(BaseModel):
    """What a person calls shared items on which the releases differ."""

    digest: str = Field(pattern="^[0-9a-f]{64}$", description="the release on trial that you looked at")
    labels: dict[str, Annotated[str, Field(min_length=1, max_length=200)]] = Field(
        min_length=1, max_length=1000, description="real, or a family, by the item's id"
    )


RetractionState = Literal["reading", "settling", "waiting", "done"]
"""reading: verdicts are scored anew. settling: all are; it ends once no worker can have answered by the
release any more. waiting: nothing can be scored anew now. done: every verdict has its outcome."""

OUTCOMES = ("same", "corrected", "withdrawn")
"""What may become of a verdict that is taken back."""


class RetractionView(BaseModel, frozen=True):
    """A release that is or was taken back, and how far that is."""

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

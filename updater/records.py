"""The records that the updater owns: a run, and a candidate with the evaluation it is approved by."""

from collections.abc import Mapping
from typing import Literal

from pydantic import AwareDatetime, BaseModel, Field

from detector.release.manifest import SourceThresholds
from updater.evaluation_parts import Flips, MadeOf, RocPoint
from updater.gate_records import Behind, Forgotten, Gate

NOT_LET_IN = "deploy refuses the token of FORGEWATCH_UPDATER_DEPLOY_TOKEN"
"""what an update waits for until somebody gives the updater today's"""
RunState = Literal["queued", "running", "proposed", "proposed with findings", "refused", "failed"]
"""queued: waits for a runner. running: one runner holds its lease. proposed: a candidate waits in deploy.
proposed with findings: so does one of which a gate does not hold. refused: there was nothing to learn, or
nothing to propose. failed: an error ended it."""

Trigger = Literal["scheduled", "count", "alarm", "drift", "manual"]
"""scheduled: a slot came due. count: enough exemplars were newly labelled. alarm: so was a suspect
of a source that shifted. drift: verdicts drifted. manual: a person asked."""


class Shares(BaseModel, frozen=True):
    """How the items of one class fared, in 0..1; real + fake + unknown = 1.

    Every group weighs the same: the pieces of one photograph are one witness, not many.
    """

    items: int
    real: float
    fake: float
    unknown: float
    named: float = Field(description="got the label of its class and, where that is a family, its very name")
    groups: int = Field(description="of the items")


class Caught(BaseModel, frozen=True):
    """How the items of a family fared that was left out of training and calibration."""

    items: int
    share: float = Field(description="of them, groups weighing the same, called fake or unknown; 0..1")
    groups: int = Field(description="of the items")
    passed: tuple[str, ...] = Field((), description="some called real, by id, the most familiar first")


class Power(BaseModel, frozen=True):
    """How much of a family that it has never seen a model would not call real, at thresholds like its own.

    Each known family was left out once. Fractions in 0..1.
    """

    share: float = Field(description="mean over the families")
    low: float = Field(description="lower end of the 95 % interval, families and groups drawn anew")
    high: float = Field(description="upper end of it")
    families: dict[str, Caught]


class Lost(BaseModel, frozen=True):
    """By how much the accuracy under distortions fell from the live release to the candidate, as a fraction.

    Negative: it rose. Of the very same items, on the classes that both know.
    """

    share: float
    low: float = Field(description="it fell at least so far, by 95 % confidence; -1..1")
    high: float = Field(description="it fell at most so far, by 95 % confidence; -1..1")
    reals: int = Field(description="items")
    forgeries: int = Field(description="items of families that both know")
    items: tuple[str, ...] = Field((), description="some of those that lost most, by id, the worst first")


class Robustness(BaseModel, frozen=True):
    """How some held-back items fared under distortions, a few crops of each.

    Every share is of a class, its groups weighing the same, and says how many were called what they are:
    reals real, forgeries fake or unknown; 0..1.
    """

    items: dict[str, int] = Field(description="how many of each class")
    undistorted: dict[str, float] = Field(description="shares by class of the very items, undistorted")
    distorted: dict[str, dict[str, float]] = Field(description="by TYPE:LEVEL, shares by class")
    lost: Lost | None = Field(None, description="of a candidate, against the live release")


class FoundStretches(BaseModel, frozen=True):
    """How what says when a video is forged fared, on held-back clips.

    Forged ones have pseudo-forgeries in one to three stretches; shares are in 0..1.
    """

    reals: int = Field(description="real clips")
    reals_told: float = Field(description="share of them with a detected segment")
    forged: int = Field(description="forged clips")
    stretches: int = Field(description="their forged stretches")
    found: float = Field(description="share of these with one that is told at a tIoU of at least 0.5")
    ap_50: float = Field(description="average precision at a tIoU of 0.5, of all clips' stretches")


class ScannerFound(FoundStretches):
    """How it fared on clips that are simulated from real pictures, and on real videos of the library."""

    learnt_library: int = Field(0, description="clips of real videos that it was trained on, too")
    held_library: int = Field(
        0, description="real videos that its threshold was set on, beside simulated clips; none if too few"
    )
    library: FoundStretches | None = Field(
        None, description="of real videos of the test split as they are, and with pseudo-forgeries"
    )


class DeclaredRecall(BaseModel, frozen=True):
    """How many items that declare generation the pixels did not call real; no random sample of forgeries."""

    items: int
    caught: int = Field(description="of them, called fake or unknown by their pixels")
    low: float = Field(description="the share is at least so high, by 95 % confidence; 0..1")
    high: float = Field(description="the share is at most so high, by 95 % confidence; 0..1")

    def __str__(self) -> str:
        share, low, high = (100 * part for part in (self.caught / self.items, self.low, self.high))
        return f"{self.caught} of {self.items}, {share:.1f} % ({low:.1f} to {high:.1f})"


class Performance(BaseModel, frozen=True):
    """What one model made of the held-back items, and its power."""

    classes: dict[str, Shares]
    power: Power | None = Field(
        None, description="as it was measured when the model was made; None of a model with a single family"
    )
    robustness: Robustness | None = Field(
        None, description="under DeeperForensics' seven distortions; None where it was not measured"
    )
    rejection_auroc: float = Field(
        description="chance that a pseudo-forgery seems less familiar than an item of the familiar classes"
    )
    rejection_energy_auroc: float | None = Field(None, description="the same by the energy alone")
    confusion: Mapping[str, Mapping[str, int]] | None = Field(
        None, description="items by class, then by what they were called: real, unknown, or a fake's family"
    )
    declared: DeclaredRecall | None = Field(
        None, description="of forgeries that declare generation; None where there is none"
    )
    rejection_roc: tuple[RocPoint, ...] | None = Field(None, description="its curve, thinned")
    rejected: RocPoint | None = Field(None, description="shares called unknown")


class RealsMarked(BaseModel, frozen=True):
    """How often the release's maps mark a real picture, as it was measured when its localizer was made."""

    share: float = Field(description="of the reals, those with more than 2 % of their cells marked")
    reals: int = Field(description="how many there were; nothing was fitted on them")


class Evaluation(BaseModel, frozen=True):
    """What evaluation.json holds. Shares and AUROCs are fractions in 0..1."""

    update: int
    parent: str | None = Field(description="digest of the live release that `before` is about")
    backbone: str
    begun_with: str | None = Field(
        None, description="whose weights a first release began with, and their licence; None: at random"
    )
    experts: tuple[str, ...] = Field((), description="each with weights, licence and its vote's share")
    seed: int
    without_kinds: tuple[str, ...] = Field(description="kinds of forging that no pseudo-forgery was made by")
    classes: tuple[str, ...]
    new: tuple[str, ...] = Field(description="classes that the live release does not know")
    waiting: Mapping[str, Mapping[str, int]] = Field(description="classes with too few items, by split")
    items: Mapping[str, Mapping[str, int]] = Field(description="items of each class, by split")
    carried: tuple[str, ...] = Field(
        (), description="known families without held-back items, which the live release's sums answer for"
    )
    resting: Mapping[str, Mapping[str, int]] = Field(
        {}, description="items of each class that were over a budget and took no part, by split"
    )
    pseudo_forgeries: int = Field(description="made of held-back items, to measure rejection by")
    before: Performance | None = Field(description="the live release on the held-back items")
    after: Performance = Field(description="the candidate on the same items")
    scanner: ScannerFound | None = Field(None, description="of the graph of forged segments")
    calibration: Mapping[str, float]
    export_differences: Mapping[str, float]
    gates: tuple[Gate, ...]
    reals_marked: RealsMarked | None = Field(None, description="by its maps; None where it makes none")
    real_groups: Mapping[str, Mapping[str, int]] = Field({}, description="of reals by source and split")
    forgotten: Forgotten | None = Field(None, description="against the live release")
    flips: Flips | None = Field(None, description="against the live release; None of the first")
    made_of: MadeOf | None = Field(None, description="the training snapshot in short")
    behind: Mapping[str, Behind] = Field({}, description="by a gate's name, the items behind its value")
    sources: Mapping[str, SourceThresholds] = Field(
        {}, description="the sources that the candidate judges by thresholds of their own"
    )


class Outlook(BaseModel, frozen=True):
    """What an update of today's labels will rest on, and what it will not know."""

    real_groups: Mapping[str, Mapping[str, int]] = Field(description="groups of reals by source and split")
    items: Mapping[str, Mapping[str, int]] = Field(description="labelled items of each class, by split")
    waiting: Mapping[str, Mapping[str, int]] = Field(
        description="classes with too few items to be learnt, and how many each split lacks"
    )
    told: tuple[str, ...] = Field(description="families that it will and will not know, a sentence each")


class Candidate(BaseModel, frozen=True):
    """A trained artifact with its evaluation. An approval binds both digests."""

    digest: str = Field(description="the artifact's digest: SHA-256 of its manifest's bytes")
    evaluation_digest: str = Field(description="SHA-256 of evaluation.json's bytes")
    parent: str | None = Field(description="digest of the live release it was compared with")
    update: int = Field(description="the updater's run that made it")
    classes: tuple[str, ...]
    gates: tuple[Gate, ...]

    @property
    def findings(self) -> tuple[Gate, ...]:
        """The gates that do not hold: an approver takes each with a reason."""
        return tuple(gate for gate in self.gates if not gate.holds)


class UpdateRun(BaseModel, frozen=True):
    """One update, from its slot coming due to its end. Written to one SQL row as it goes."""

    id: int
    slot: str = Field(description="the occasion; no two runs share a slot")
    trigger: Trigger
    requested_by: str
    requested_at: AwareDatetime
    state: RunState
    runner: str | None = Field(description="the runner that holds or last held its lease")
    token: int = Field(description="fencing token: grows with each claim, so that an older holder is refused")
    takeovers: int = Field(description="how many runners died while they held it")
    lease_until: AwareDatetime | None
    started_at: AwareDatetime | None = Field(description="when it was first claimed")
    finished_at: AwareDatetime | None
    stage: str | None
    done: int = Field(description="steps of the stage that are done")
    total: int = Field(description="steps of the stage; 0 where it is not known")
    labels_seen: int | None = Field(description="number of the newest label that its data had seen")
    candidate: str | None = Field(description="digest of the artifact that it made")
    error: str | None = Field(description="why it was refused or failed, or its findings, in one sentence")

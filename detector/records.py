"""The records that the detector owns: the verdict it emits and the rollout it follows."""

import hashlib
import hmac
from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field, model_validator

from ingest.records import MediaItem, MediaKind, Provenance
from ingest.sandbox.crops import Box

Label = Literal["real", "fake", "unknown"]
Stage = Literal["envelope", "decode", "score", "commit"]
Reason = Literal[
    "request_too_large", "refused", "deadline_exceeded", "scoring_failed", "record_too_large", "unexpected"
]

# SHA-256 of a release's manifest.json, and so of every file that it names.
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Prediction(BaseModel, frozen=True):
    """What the detector says of one region or of a whole item.

    energy is -T * logsumexp(known logits / T): higher means less familiar. novelty is the mean
    distance to the nearest exemplars of the release's reference set in whitened forensic
    features, over how far those are from their own nearest: about 1 among familiar media,
    higher farther off. unknown_score is the gate's: above Verdict.unknown_threshold the item is
    unknown.
    """

    label: Label
    family: str | None = Field(
        description="the likeliest forgery family, or the file's own claim; None where pixels are called real"
    )
    family_probability: float | None = Field(description="None also of a file's own claim")
    fake_probability: float
    energy: float
    novelty: float
    unknown_score: float


class RegionPrediction(Prediction):
    """The scores of one face or one frame: evidence beside the item's own scores."""

    kind: Literal["face", "frame"]
    box: Box = Field(description="left, top, width, height; native pixels")
    frame: int
    time_s: float | None


class Neighbour(BaseModel, frozen=True):
    """One of the nearest exemplars in the release's reference set."""

    exemplar: str
    family: str
    distance: float


class ForgeryMap(BaseModel, frozen=True):
    """Where a picture is forged, as the release's localizer sees it: a grid of square cells.

    A cell is marked where its value, of 255, reaches the threshold. A map does not change the label.
    """

    png: str = Field(description="grey PNG in base64, one pixel a cell: 0 real, 255 forged")
    cell_px: int = Field(description="side of a cell, native pixels")
    part: Box = Field(description="the region judged: left, top, width, height; native pixels")
    threshold: float
    share: float = Field(description="of the cells, how many are marked")
    box: Box | None = Field(description="around the largest group of marked cells that touch; native pixels")
    frame: int = Field(description="the frame's number; 0 for a still image")


class Segment(BaseModel, frozen=True):
    """A stretch of a video that is forged, as the release's scanner sees it."""

    start_s: float
    end_s: float = Field(description="where the first frame behind it begins")
    frames: tuple[int, int] = Field(description="the numbers of its first and its last frame")
    score: float = Field(description="how far it stands out, in 0..1")
    box: Box = Field(description="the region judged in its middle; native pixels")


class Scan(BaseModel, frozen=True):
    """How a video was scanned: one crop in each of some frames, evenly spread."""

    frames: int = Field(description="how many were scanned")
    left_out: int = Field(
        0, description="how many more would have been, had they not been too dear to decode, or damaged"
    )
    step_s: float = Field(description="mean seconds from one to the next")
    threshold: float = Field(description="a stretch is told from this score on")
    times_s: tuple[float, ...] = Field(description="when each was shown")
    scores: tuple[float, ...] = Field(description="how likely each is forged, 0..1")


class Coverage(BaseModel, frozen=True):
    """What of a file was looked at. Of several pictures, pages or tracks it is the one that viewers show."""

    frames: int = Field(1, description="how many that picture, animation or film has")
    judged: tuple[int, ...] = Field((0,), description="the numbers of those that were looked at")
    others: int = Field(
        0, description="further pictures, pages or tracks of the file, without thumbnails: not looked at"
    )
    incomplete: bool = Field(False, description="the file is cut or damaged: judged by its readable part")


class Timings(BaseModel, frozen=True):
    """Seconds that one item spent in each part; model is its share of the batch's request."""

    decode_s: float
    model_s: float
    map_s: float = Field(0.0, description="the second look at where, with the wait for its decoding")
    scan_s: float = Field(0.0, description="the second look at when, with the wait for its decoding")
    stretch_s: float = Field(0.0, description="judging it by its stretch, with the wait for its decoding")


class Verdict(Prediction):
    """What the system says of one item. Sent as a CloudEvent whose id is `id`.

    A video that would be called real, though a stretch of it is told, is judged by the surest of its
    stretches alone: scores, regions and neighbours are of that. It is unknown where these speak of a real
    one, whatever unknown_score is. So is a video that would be called fake, where its unknown_score is above
    the threshold of pictures.
    """

    id: str = Field(description="topic-partition-offset of the item")
    item: MediaItem
    kind: MediaKind
    format: str
    width: int
    height: int
    coverage: Coverage = Coverage()
    unknown_threshold: float
    fake_threshold: float
    thresholds_of: str | None = Field(
        None, description="the source whose own reals these were set on; None: they are pooled over all"
    )
    first_sight: bool = Field(
        False, description="no reals of its source are known: novelty alone does not call it unknown"
    )
    above: tuple[Literal["fakeness", "novelty"], ...] = Field(
        (),
        description="which are above their thresholds: fakeness is fake_probability, novelty unknown_score",
    )
    unknown_parts: dict[str, float] | None = Field(
        None,
        description="what each score adds to unknown_score, by the score's name, and in older releases"
        " surroundings, the level around the item, subtracted; they sum to unknown_score but for"
        " rounding to 5 decimals; None: the release does not give its scores",
    )
    neighbours: tuple[Neighbour, ...]
    regions: tuple[RegionPrediction, ...]
    map: ForgeryMap | None = Field(
        None,
        description="where it is forged; None: called real, no localizer that marks few reals, or it failed",
    )
    segments: tuple[Segment, ...] | None = Field(
        None, description="when it is forged, the surest stretch first; None as scan is"
    )
    scan: Scan | None = Field(
        None, description="how that was found; None: no video, no scanner in the release, or it failed"
    )
    left_out: tuple[Literal["scan", "map"], ...] = Field(
        (), description="looks that were left out since records waited: their share of the time is bounded"
    )
    unscanned: str | None = Field(
        None,
        description="why this video could not be scanned, or its stretch not be judged, in one line: what"
        " would be called real is unknown then; None: it was, or is no video, or scan is among left_out",
    )
    provenance: Provenance = Field(
        Provenance(), description="the file's statements about its origin: claims, which never make it real"
    )
    pixel_label: Label | None = Field(
        None, description="the label by pixels alone, where provenance changed it; None: it did not"
    )
    release: str = Field(description="digest of the release that said it")
    supersedes: Digest | None = Field(
        None,
        description="of a correction: the release that was taken back, whose verdict of the same id this one"
        " replaces",
    )
    timings: Timings

    @property
    def by_pixels(self) -> Label:
        """The label that the pixels alone give."""
        return self.pixel_label or self.label

    @property
    def by_declaration(self) -> bool:
        """Whether its file's declaration decides it, whatever the pixels show."""
        return (self.family or "").startswith("declared:")

    @property
    def for_memory(self) -> bool:
        """Whether it may be learnt: it is unknown, or declares generation that the pixels do not show."""
        declared = self.provenance.generation is not None
        return self.label == "unknown" or (declared and self.by_pixels != "fake")


class Withdrawal(BaseModel, frozen=True):
    """A verdict of a release that was taken back, whose media is gone: nothing holds of it any more."""

    id: str = Field(description="the verdict's: topic-partition-offset of the item")
    item: MediaItem
    release: Digest = Field(description="the release that was taken back, which had said it")
    reason: str = Field(description="why it cannot be scored anew, in one line")


OutcomeKind = Literal["same", "corrected", "withdrawn"]


class Outcome(BaseModel, frozen=True):
    """What became of one verdict of a release that was taken back. Each has exactly one."""

    retraction: int = Field(description="number of the retraction: the ledger's sequence number")
    release: Digest = Field(
        description="the release that was taken back; a restored ledger gives numbers twice"
    )
    id: str = Field(description="the verdict's")
    outcome: OutcomeKind
    before: Label
    after: Label | None = Field(description="None where it was withdrawn")


class ReleaseVerdict(BaseModel, frozen=True):
    """What one of two releases said of a shared item; None throughout, but for why, where it could not."""

    release: Digest
    label: Label | None = None
    family: str | None = None
    fake_probability: float | None = None
    energy: float | None = None
    unknown_score: float | None = None
    model_s: float = Field(0.0, description="seconds, its share of the request")
    error: str | None = Field(None, description="why there is no verdict, in one line")


class Comparison(BaseModel, frozen=True):
    """One item that the champion (the stable release) and the challenger (the canary) both scored.

    Written in the transaction of the item's answer.
    """

    id: str = Field(description="topic-partition-offset of the item")
    source: str
    digest: str = Field(description="SHA-256 of the media")
    declared: bool = Field(False, description="its file declares generation; both labels are of the pixels")
    rollout: int | None = Field(None, description="its rollout: Rollout.trial")
    champion: ReleaseVerdict
    challenger: ReleaseVerdict
    answered: Literal["champion", "challenger"] = Field(description="whose word went out")
    left_out: str | None = Field(None, description="why the challenger was not asked: nothing is compared")


VERDICTS, UNKNOWNS, RELEASES = "verdicts", "unknowns", "releases"
# The topics that the detector writes and reads, by their names after the prefix.
COMPARISONS, RETRACTIONS = "comparisons", "retractions"

# Of a Comparison or an Outcome: a source has 1,024 characters at most, an error 1,000.
MAX_COMPARISON_BYTES = 16_384

# The largest whole number that every reader of JSON keeps exactly.
MAX_EPOCH = 2**53 - 1


class Retraction(BaseModel, frozen=True):
    """A release whose verdicts are to be taken back: each is scored anew by the stable release."""

    number: int = Field(ge=1, le=MAX_EPOCH, description="sequence number of the ledger's row that began it")
    release: Digest
    since_ms: int = Field(description="none of its verdicts is older; Unix time, milliseconds")


class Rollout(BaseModel, frozen=True):
    """What every detector worker is to serve, by slot. Deploy alone writes it, from its ledger.

    Of two rollouts by one ledger the later has the higher (epoch, sequence).
    """

    ledger: Annotated[str, Field(pattern="^[0-9a-f]{32}$")] = Field(
        description="id of the ledger that says so"
    )
    epoch: int = Field(
        ge=0, le=MAX_EPOCH, description="raised where a ledger was restored, or begun anew over an old topic"
    )
    sequence: int = Field(
        ge=0, le=MAX_EPOCH, description="the ledger's sequence number; grows with each change"
    )
    stable: Digest = Field(description="the release that scores every item, the champion")
    canary: Digest | None = Field(None, description="the release that is on trial, the challenger")
    canary_share: float = Field(
        0.0, ge=0, le=1, description="share of the items that the canary answers; 0 in shadow"
    )
    shared_share: float = Field(
        0.0, ge=0, le=1, description="share of the items that both score, the canary's among them"
    )
    trial: int | None = Field(
        None, description="the canary's rollout: sequence number of the ledger's row that began it"
    )
    retractions: tuple[Retraction, ...] = Field((), description="the verdicts to retract, oldest first")
    previous: Digest | None = Field(None, description="the release kept loaded for the rollback window")

    @model_validator(mode="after")
    def _no_share_without_a_canary(self) -> Self:
        if self.canary is None and max(self.canary_share, self.shared_share) > 0:
            raise ValueError("a share without a canary")
        if self.shared_share < self.canary_share:
            raise ValueError("shared_share is less than canary_share")
        return self


SIGNATURE = "signature"
"""Header of a comparison or an outcome: HMAC-SHA256 of its value, by its detector's token for deploy."""

# A worker's hindrance while it waits for its first release.
NO_RELEASE = "no release is served yet"


def in_share(item_id: str, share: float) -> bool:
    """Whether an id belongs to a share of all ids, in [0, 1].

    SHA-256 places each id evenly and for good, so a larger share holds all of a smaller one's. The id is
    topic, partition and offset: the broker gives it, so that no producer can choose who scores its media.
    """
    place = int.from_bytes(hashlib.sha256(item_id.encode()).digest()[:8])
    return place < share * 2**64


def sign(key: bytes, value: bytes) -> bytes:
    """Return the signature of a comparison's value: HMAC-SHA256, hexadecimal, ASCII."""
    return hmac.new(key, value, "sha256").hexdigest().encode()


def signature_headers(key: bytes | None, value: bytes) -> tuple[tuple[str, bytes], ...]:
    """Return the headers of a comparison or an outcome; None: nothing signs it."""
    return () if key is None else ((SIGNATURE, sign(key, value)),)

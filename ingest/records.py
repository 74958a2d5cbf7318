"""The records that ingest owns: a media item, and the plans to cut it for a model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, Field, model_validator

from ingest.trace_context import TraceContext, trace_context

MediaKind = Literal["image", "video"]
Interpolation = Literal["bilinear", "bicubic", "lanczos"]


class MediaError(Exception):
    """An item that can never be scored: fatal for the item, harmless for the stream.

    reason is one of a small closed set (see the subclasses' modules), so that it can be a metric's
    label; the message is for a person. claims are its file's, as of Provenance, and follow the message.
    """

    claims: Sequence[str] = ()

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason

    def __str__(self) -> str:
        return ". ".join((super().__str__(), *self.claims))


class Position(NamedTuple):
    """The next offset to read, and the broker's id of the topic that it counts in, where it is known.

    A topic that was made anew under the same name has another id, and counts from 0 again.
    """

    offset: int
    topic_id: str | None = None

    def is_of(self, topic_id: str | None) -> bool:
        """Whether it counts in the topic of this id; an unknown id counts as the same."""
        return None in (self.topic_id, topic_id) or self.topic_id == topic_id


class Unreadable(bytes):
    """The value of a record that the client could not read: empty, and `why` says so."""

    def __new__(cls, why: str) -> Self:
        value = super().__new__(cls)
        value.why = why
        return value

    why: str


@dataclass(frozen=True, slots=True)
class InRecord:
    """One Kafka record as it was read; headers may repeat a name, in their order.

    passed counts the offsets right after it that hold nothing to be read, such as the end of its transaction.
    """

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...]
    passed: int = 0

    @property
    def id(self) -> str:
        """topic-partition-offset."""
        return f"{self.topic}-{self.partition}-{self.offset}"

    @property
    def next_offset(self) -> int:
        """Where to read on once this record is done."""
        return self.offset + 1 + self.passed


@dataclass(frozen=True, slots=True)
class OutRecord:
    """One Kafka record to be written; the partition follows from the key."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()


class MediaItem(BaseModel, frozen=True):
    """One item of the media topic, without its bytes: where it came from and what it is."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int = Field(description="the Kafka record's timestamp, milliseconds since the epoch")
    media_id: str | None = Field(None, description="the CloudEvent's id, where the item came as one")
    source: str = Field(
        description="the CloudEvent's source; of a bare value its header `source`, else its key as text "
        "where that repeats, else the topic's name"
    )
    declared_type: str | None = Field(None, description="the content type that the producer stated")
    digest: str = Field(description="SHA-256 of the media bytes, hexadecimal")
    size_bytes: int
    traceparent: str | None = Field(
        None, description="the producer's place in a trace, by W3C Trace Context; None: it named no valid one"
    )
    tracestate: str | None = Field(None, description="tracing systems' additions to traceparent")

    @property
    def trace(self) -> TraceContext | None:
        """The producer's place in a trace, of both fields."""
        return trace_context(self.traceparent, self.tracestate)


ProvenanceState = Literal[
    "none", "valid_trusted", "valid_untrusted", "invalid", "remote", "unreadable", "too_costly"
]
Declaration = Literal["generated", "edited_with_ai", "composite", "captured", "other"]
"""The origin that a file states for itself: a claim, never a fact."""


_ORIGINS: Mapping[Declaration, str] = {
    "generated": "was made by a generative model in",
    "edited_with_ai": "was edited with an AI model in",
    "composite": "was composed of several pictures in",
    "captured": "was captured with a camera by",
    "other": "was made by other means in",
}
_SIGNERS: Mapping[ProvenanceState, str] = {
    "valid_trusted": "on your trust list",
    "valid_untrusted": "not on your trust list",
    "invalid": "but changed since, or the certificate does not count",
}


def _clean(text: object) -> object:
    return "".join(sign for sign in text[:400] if sign.isprintable())[:200] if isinstance(text, str) else text


Claim = Annotated[str, BeforeValidator(_clean), Field(max_length=200)]
"""Text from a stranger's file: bounded, without control characters and marks of direction."""


class Metadata(BaseModel, frozen=True):
    """Statements of a file that nobody signed: anyone can write or remove them."""

    declares: Declaration | None = Field(None, description="the origin that the statements declare")
    generator: Claim | None = Field(None, description="the generator that wrote its parameters")
    make: Claim | None = Field(None, description="EXIF's maker of the camera")
    model: Claim | None = Field(None, description="EXIF's camera model")
    software: Claim | None = Field(None, description="EXIF's software")


class Provenance(BaseModel, frozen=True):
    """A file's statements about its own origin: its C2PA credential, and unsigned metadata."""

    state: ProvenanceState = Field("none", description="the credential's")
    declares: Declaration | None = Field(None, description="the origin that the credential declares")
    signer: Claim | None = Field(None, description="the certificate's common name")
    issuer: Claim | None = Field(None, description="the certificate's organisation")
    generator: Claim | None = Field(None, description="the software or model that the credential names")
    time: Claim | None = Field(None, description="the signature's time, as the credential states it")
    actions: tuple[Claim, ...] = Field((), max_length=16, description="its first actions, without `c2pa.`")
    ingredients: tuple[Claim, ...] = Field((), max_length=16, description="titles of its generated ones")
    metadata: Metadata = Metadata()

    @property
    def claims(self) -> list[str]:
        """The declarations in words: of the credential, and unsigned; sentences without a full stop."""
        texts, unsigned = [], self.metadata
        if self.state in _SIGNERS:
            by = f"signed by {self.signer or 'an unnamed signer'}, {_SIGNERS[self.state]}"
            origin = self.declares and f"says that it {_origin(self.declares, self.generator)}"
            texts.append(f"The file {origin or 'does not say how it was made'} ({by})")
        if unsigned.declares:
            texts.append(f"The file says, unsigned, that it {_origin(unsigned.declares, unsigned.generator)}")
        return texts

    @property
    def generation(self) -> Declaration | None:
        """`generated` or `edited_with_ai`, where a valid credential or an unsigned statement declares it."""
        signed = self.declares if self.state.startswith("valid") else None
        claims = (signed, self.metadata.declares)
        return next((claim for claim in claims if claim in ("generated", "edited_with_ai")), None)


def _origin(declares: Declaration, generator: str | None) -> str:
    return f"{_ORIGINS[declares]} {generator}" if generator else _ORIGINS[declares].rpartition(" ")[0]


class CropPlan(BaseModel, frozen=True):
    """How decoded media is cut for a model. Part of a release, since it swaps with the weights."""

    crop_px: int = Field(128, description="side of a square crop, native pixels")
    patches: int = Field(9, description="most patches of one whole image or frame")
    stride_px: int | None = Field(
        None, gt=0, description="most distance of neighbouring patches of an image; None: their side"
    )
    face_patches: int = Field(4, description="most patches of one face; 0 leaves faces out")
    faces: int = Field(3, description="most faces of one image or frame, the largest first")
    frames: int = Field(8, description="most frames sampled of a video or an animation")


class PicturePlan(BaseModel, frozen=True, extra="forbid"):
    """How each sampled frame is shown: whole, resized with its aspect ratio not kept."""

    width_px: int = Field(gt=0, le=1024)
    height_px: int = Field(gt=0, le=1024)
    interpolation: Interpolation = Field("bilinear", description="how it is resized")


class MediaPlan(BaseModel, frozen=True):
    """Every view of decoded media that a model takes: the crops, and whole pictures by name."""

    crops: CropPlan = CropPlan()
    pictures: dict[str, PicturePlan] = {}
    frames: tuple[int, ...] | None = Field(
        None, min_length=1, description="numbers of the frames to look at; None: sampled as for the crops"
    )

    @model_validator(mode="after")
    def _no_more_frames_than_the_crops_are_of(self) -> Self:
        if self.frames is not None and len(self.frames) > self.crops.frames:
            raise ValueError(f"{len(self.frames)} frames are more than the crops' {self.crops.frames}")
        return self


class Place(NamedTuple):
    """The upper left corner of one crop, native pixels after EXIF orientation, in a frame by its number."""

    frame: int
    left: int
    top: int


class PlacesPlan(BaseModel, frozen=True, extra="forbid"):
    """A second look at media whose size and length are known: crops at these places, and nothing else."""

    crop_px: int = Field(128, gt=0, le=1024, description="side of a square crop, native pixels")
    places: tuple[Place, ...] = Field(min_length=1, max_length=256)
    most_decoded: int | None = Field(
        None, gt=0, description="most frames to decode on the way there; None: as many as at a first look"
    )

    @property
    def frames(self) -> tuple[int, ...]:
        """The numbers of the frames that are looked at, in order."""
        return tuple(sorted({place.frame for place in self.places}))


Plan = MediaPlan | PlacesPlan


@dataclass(frozen=True)
class Region:
    """A part of the media that is scored by itself beside the whole item.

    box is (left, top, width, height) in native pixels after EXIF orientation; time_s is the
    frame's presentation time in seconds (None for a still image); crops are the rows of
    Decoded.crops which show this region.
    """

    kind: Literal["face", "frame"]
    box: tuple[int, int, int, int]
    frame: int
    time_s: float | None
    crops: tuple[int, ...]


@dataclass(frozen=True)
class Decoded:
    """Media after decoding and cropping.

    crops is uint8 RGB of shape (N, crop_px, crop_px, 3), N >= 1; width and height are native
    pixels after EXIF orientation; frames is the count of frames that were sampled (1 for a still
    image); format is the decoder's name for the container ("JPEG", "mp4", ...). pictures are the
    plan's, by name, uint8 RGB of shape (frames, height_px, width_px, 3): row i shows the frame whose
    number, as in Region.frame, is frame_numbers[i]. length counts all frames that the container holds, and
    others further pictures, pages and tracks, which are not looked at. What is incomplete is cut or damaged,
    and was read as far as it goes.
    picture_hashes are those of `ingest.picture_hash`, one frame after another, without the nearly flat ones;
    of a PlacesPlan, or one of frames by their numbers, there are none. processor_s is what the media
    took of a processor so far, over all tries and looks, where a sandbox decoded it. frame_s is what a frame
    took, of all that were decoded, also on the way to those that were wanted. Both are seconds.

    Of a PlacesPlan, region i is the part of the picture that crop i shows.
    """

    kind: MediaKind
    format: str
    width: int
    height: int
    frames: int
    crops: NDArray[np.uint8] = field(compare=False)
    regions: tuple[Region, ...]
    frame_numbers: tuple[int, ...] = (0,)
    length: int = 1
    others: int = 0
    incomplete: bool = False
    pictures: Mapping[str, NDArray[np.uint8]] = field(default_factory=dict, compare=False)
    picture_hashes: bytes = b""
    processor_s: float = field(default=0.0, compare=False)
    frame_s: float = field(default=0.0, compare=False)
    provenance: Provenance = field(default_factory=Provenance)

    def view(self, name: str) -> NDArray[np.uint8]:
        """Return the crops, or the pictures of that name: uint8 RGB of shape (n, height, width, 3)."""
        return self.crops if name == "crops" else self.pictures[name]

    def rows_of(self, region: Region, name: str) -> tuple[int, ...]:
        """Return which rows of a view show a region: its crops, or the picture of its frame."""
        return region.crops if name == "crops" else (self.frame_numbers.index(region.frame),)

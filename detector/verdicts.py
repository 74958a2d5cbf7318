"""From a model's output to verdicts, and `JudgedItem`: an item with its verdict so far. Pure."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from detector.records import Coverage, Label, Neighbour, RegionPrediction, Timings, Verdict, Withdrawal
from detector.release.artifact import Artifact
from detector.release.manifest import GateParameters, apply_policy, decide
from detector.release.tensors import ModelOutput, Request
from ingest.records import Decoded, MediaItem
from ingest.trace_context import TraceContext

VERDICT_TYPE = "io.forgewatch.verdict"

# left and top of a crop, px
Corner = tuple[int, int]

# What one of the release's graphs says of a request.
Ask = Callable[[Request], ModelOutput]


@dataclass(frozen=True)
class ItemEvidence:
    """The evidence of a label: the media as it was decoded, and the model's rows of it as a whole.

    features float32 (F,), raw forensic features; embedding float32 (D,). Where the label is unknown, this is
    what a person reviews, and what an update learns from.
    """

    decoded: Decoded
    features: NDArray[np.float32]
    embedding: NDArray[np.float32]


def evidence_of(items: Sequence[Decoded], output: ModelOutput) -> list[ItemEvidence]:
    """Return the evidence of each of a request's items, whose rows are the output's first."""
    rows = zip(items, output["features"], output["embedding"], strict=False)
    return [ItemEvidence(*row) for row in rows]


@dataclass(frozen=True)
class VideoClip:
    """A video's facts from the first look, beside its verdict."""

    length: int
    """how many frames the container holds"""
    elsewhere: Corner
    """where to look where no face was found"""
    frame_s: float = 0.0
    """processor time that decoding a frame took"""


@dataclass(frozen=True)
class JudgedItem:
    """An item after a look: its verdict, the model's output, and its media to decode again."""

    verdict: Verdict
    evidence: ItemEvidence
    media: Callable[[], bytes]
    clip: VideoClip | None = None
    """None: no video, or the release has no scanner"""
    processor_s: float = 0.0
    """what the looks at it took of a processor so far: a further one has the rest"""


@dataclass(frozen=True)
class Origin:
    """Whose verdict: the item, its id (topic-partition-offset), and the seconds its parts took."""

    id: str
    item: MediaItem
    timings: Timings


def build(
    origins: Sequence[Origin],
    items: Sequence[Decoded],
    output: ModelOutput,
    artifact: Artifact,
    *,
    suspected: bool = False,
) -> list[Verdict]:
    """The verdicts of one request's items, in order; the output's rows are those of `contract.request_for`.

    suspected: something else speaks against the items: where the gate would call one real, it is unknown.
    """
    gate = artifact.manifest.gate
    bearers = [*items, *(item for item in items for _ in item.regions)]
    of_video = [item.kind == "video" for item in bearers]
    named = [origin.item.source for origin in origins]
    sources = [*named, *(name for name, item in zip(named, items, strict=True) for _ in item.regions)]
    rows = _rows(output, artifact, of_video, sources, len(items) if suspected else 0)
    entries = artifact.manifest.reference
    parts = unknown_parts(output, gate, len(items))
    # The regions' rows follow the items', in the items' order.
    firsts = len(items) + np.cumsum([0, *(len(item.regions) for item in items)])
    verdicts = []
    for i, (origin, decoded) in enumerate(zip(origins, items, strict=True)):
        first = int(firsts[i])
        unknown_above = gate.unknown_above(video=of_video[i], source=sources[i])
        fake_above = gate.fake_above(sources[i])
        spoke = {
            "fakeness": rows[i]["fake_probability"] > fake_above,
            "novelty": rows[i]["unknown_score"] > unknown_above,
        }
        regions = tuple(
            RegionPrediction(
                kind=region.kind, box=region.box, frame=region.frame, time_s=region.time_s, **rows[first + j]
            )
            for j, region in enumerate(decoded.regions)
        )
        verdicts.append(
            Verdict(
                id=origin.id,
                item=origin.item,
                kind=decoded.kind,
                format=decoded.format,
                width=decoded.width,
                height=decoded.height,
                coverage=Coverage(
                    frames=decoded.length,
                    judged=decoded.frame_numbers,
                    others=decoded.others,
                    incomplete=decoded.incomplete,
                ),
                unknown_threshold=unknown_above,
                fake_threshold=fake_above,
                first_sight=gate.is_first_sight(sources[i]),
                above=tuple(name for name, above in spoke.items() if above),
                thresholds_of=sources[i] if sources[i] in gate.sources else None,
                unknown_parts=parts[i] if parts else None,
                neighbours=tuple(
                    Neighbour(**entries[index].model_dump(), distance=float(distance))
                    for index, distance in zip(
                        output["neighbour_index"][i], output["neighbour_distance"][i], strict=True
                    )
                ),
                regions=regions,
                provenance=decoded.provenance,
                release=artifact.digest,
                timings=origin.timings,
                **rows[i] | apply_policy(decoded.provenance, artifact.manifest.provenance, rows[i]["label"]),
            )
        )
    return verdicts


def not_finite(verdict: Verdict) -> list[str]:
    """Name the numbers of a verdict that are none in its JSON: no reader takes it."""
    names = "fake_probability", "energy", "novelty", "unknown_score"
    numbers = [(name, getattr(bearer, name)) for bearer in (verdict, *verdict.regions) for name in names]
    numbers += [("distance", neighbour.distance) for neighbour in verdict.neighbours]
    return [f"{name} {value}" for name, value in numbers if not math.isfinite(value)]


def fake_probabilities(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """1 - P(real) of each row of logits (M, K), whose class 0 is real; float64 (M,)."""
    return np.asarray(1 - softmax(logits.astype(np.float64), 1)[:, 0])


def _rows(
    output: ModelOutput, artifact: Artifact, of_video: Sequence[bool], sources: Sequence[str], suspected: int
) -> list[dict[str, Any]]:
    """The fields of records.Prediction for each row of an item or a region of one.

    of_video, sources: whether it is of a video, and its item's source. So many leading rows as are suspected
    are not called real.
    """
    manifest = artifact.manifest
    probabilities = softmax(output["logits"].astype(np.float64), 1)
    families = 1 + probabilities[:, 1:].argmax(1)
    rows = []
    for i, (family, video, source) in enumerate(zip(families, of_video, sources, strict=False)):
        fake_probability, unknown_score = float(1 - probabilities[i, 0]), float(output["unknown_score"][i])
        label: Label = decide(unknown_score, fake_probability, manifest.gate, video=video, source=source)
        if label == "real" and i < suspected:
            label = "unknown"
        named = label != "real"
        rows.append(
            {
                "label": label,
                "family": manifest.classes[family] if named else None,
                "family_probability": float(probabilities[i, family]) if named else None,
                "fake_probability": fake_probability,
                "energy": float(output["energy"][i]),
                "novelty": float(output["novelty"][i]),
                "unknown_score": unknown_score,
            }
        )
    return rows


_DECIMALS = 5


def unknown_parts(output: ModelOutput, gate: GateParameters, items: int) -> list[dict[str, float]]:
    """Return each term's part of the unknown score of the first so many rows, by its name.

    It is weight * clip((score - median) / scale). What is left of an older release's unknown score
    stands under surroundings. Empty where the output lacks a score.
    """
    if not gate.terms.keys() <= output.keys():
        return []
    parts = {
        name: term.weight
        * np.clip((output[name][:items].astype(float) - term.median) / term.scale, -gate.clip, gate.clip)
        for name, term in gate.terms.items()
    }
    if gate.surroundings:
        parts["surroundings"] = output["unknown_score"][:items] - np.sum(list(parts.values()), 0)
    return [
        {name: float(value) for name, value in zip(parts, row, strict=True)}
        for row in np.round(np.stack(list(parts.values()), 1), _DECIMALS)
    ]


def source_of(release: str) -> str:
    """Return the CloudEvents' source of a release's verdicts, by its digest."""
    return f"/forgewatch/releases/{release}"


def event_headers(about: Verdict | Withdrawal, source: str, kind: str) -> list[tuple[str, bytes]]:
    """Return the attributes of a CloudEvent of this type (Kafka binding, binary mode), by their source."""
    attributes = {
        "ce_specversion": "1.0",
        "ce_id": about.id,
        "ce_source": source,
        "ce_type": kind,
        "ce_subject": about.item.media_id or about.id,
        "content-type": "application/json",
    }
    return [(name, value.encode()) for name, value in attributes.items()]


def verdict_headers(verdict: Verdict, trace: TraceContext | None) -> list[tuple[str, bytes]]:
    """The attributes of the CloudEvent (Kafka binding, binary mode) whose data is the verdict's JSON.

    The producer's place in a trace is among them as the item came with it (CloudEvents' extension distributed
    tracing). trace is the place that the verdict itself has, which goes into the headers of W3C.
    """
    named = event_headers(verdict, source_of(verdict.release), VERDICT_TYPE)
    begun = verdict.item.trace
    return named + (begun.headers("ce_") if begun else []) + (trace.headers() if trace else [])

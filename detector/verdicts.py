"""From decoded items to one request, and from its scores to verdicts. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detector.artifact import Artifact
from detector.gate import decide
from detector.records import Label, Neighbour, RegionScores, Timings, Verdict
from detector.scored import Scored
from ingest.records import Decoded, MediaItem


@dataclass(frozen=True)
class Pooled:
    """What one request carries for n items.

    crops is uint8 (N, S, S, 3), the items' crops one after the other; pooling float32 (M, N): rows
    0..n-1 are the mean over each item's crops, the rows after them the means over each region's, in
    the items' order; first_region[i] is the row of item i's first region.
    """

    crops: NDArray[np.uint8]
    pooling: NDArray[np.float32]
    first_region: tuple[int, ...]


def pooling_for(items: Sequence[Decoded]) -> Pooled:
    """Stack the items' crops and say which crops each row of the result is the mean of.

    Raises ValueError when there is no item, or an item has no crop.
    """
    if not items or any(len(item.crops) == 0 for item in items):
        raise ValueError("every item needs a crop")
    starts = np.cumsum([0, *(len(item.crops) for item in items)])
    rows = len(items) + sum(len(item.regions) for item in items)
    pooling = np.zeros((rows, starts[-1]), np.float32)
    first_region, row = [], len(items)
    for i, item in enumerate(items):
        pooling[i, starts[i] : starts[i + 1]] = 1 / len(item.crops)
        first_region.append(row)
        for region in item.regions:
            pooling[row, starts[i] + np.asarray(region.crops)] = 1 / len(region.crops)
            row += 1
    return Pooled(np.concatenate([item.crops for item in items]), pooling, tuple(first_region))


@dataclass(frozen=True)
class Source:
    """Whose verdict: the item, its id (topic-partition-offset), and the seconds its parts took."""

    id: str
    item: MediaItem
    timings: Timings


def build(
    sources: Sequence[Source], items: Sequence[Decoded], pooled: Pooled, scored: Scored, artifact: Artifact
) -> list[Verdict]:
    """The verdicts of one request's items, in order; scored has pooled's rows."""
    gate = artifact.manifest.gate
    rows = _row_scores(scored, artifact)
    neighbours = _neighbours(scored, len(items), artifact)
    verdicts = []
    for i, (source, decoded) in enumerate(zip(sources, items, strict=True)):
        first = pooled.first_region[i]
        regions = tuple(
            RegionScores(
                kind=region.kind, box=region.box, frame=region.frame, time_s=region.time_s, **rows[first + j]
            )
            for j, region in enumerate(decoded.regions)
        )
        verdicts.append(
            Verdict(
                id=source.id,
                item=source.item,
                kind=decoded.kind,
                format=decoded.format,
                width=decoded.width,
                height=decoded.height,
                unknown_threshold=gate.unknown_threshold,
                fake_threshold=gate.fake_threshold,
                neighbours=neighbours[i],
                regions=regions,
                release=artifact.digest,
                timings=source.timings,
                **rows[i],
            )
        )
    return verdicts


def fake_probabilities(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    """1 - P(real) of each row of logits (M, K), whose class 0 is real; float64 (M,)."""
    return 1 - _softmax(logits)[:, 0]


def _softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    exponentials = np.exp(logits.astype(np.float64) - logits.max(1, keepdims=True))
    probabilities: NDArray[np.float64] = exponentials / exponentials.sum(1, keepdims=True)
    return probabilities


def _row_scores(scored: Scored, artifact: Artifact) -> list[dict[str, Any]]:
    """The fields of records.Scores for every row."""
    manifest = artifact.manifest
    probabilities = _softmax(scored.logits)
    families = 1 + probabilities[:, 1:].argmax(1)
    rows = []
    for i, family in enumerate(families):
        fake_probability, unknown_score = float(1 - probabilities[i, 0]), float(scored.unknown_score[i])
        label: Label = decide(unknown_score, fake_probability, manifest.gate)
        named = label != "real"
        rows.append(
            {
                "label": label,
                "family": manifest.classes[family] if named else None,
                "family_probability": float(probabilities[i, family]) if named else None,
                "fake_probability": fake_probability,
                "energy": float(scored.energy[i]),
                "novelty": float(scored.novelty[i]),
                "unknown_score": unknown_score,
            }
        )
    return rows


def _neighbours(scored: Scored, items: int, artifact: Artifact) -> list[tuple[Neighbour, ...]]:
    entries = artifact.manifest.reference
    return [
        tuple(
            Neighbour(
                exemplar=entries[index].exemplar, family=entries[index].family, distance=float(distance)
            )
            for index, distance in zip(scored.neighbour_index[i], scored.neighbour_distance[i], strict=True)
        )
        for i in range(items)
    ]

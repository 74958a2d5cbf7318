"""One batch on its way: opened records, decoded media, scores, and what goes out. No Kafka client in here."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Literal

from detector.artifact import Artifact
from detector.records import Timings, Verdict
from detector.scored import Scored
from detector.unknowns import encode
from detector.verdicts import Pooled, Source, build, pooling_for
from ingest.envelope import open_envelope
from ingest.records import Decoded, InRecord, MediaError, MediaItem
from ingest.sandbox import Sandbox
from ingest.settings import IngestSettings

VERDICT_TYPE = "io.forgewatch.verdict"

Stage = Literal["envelope", "decode", "score"]
Score = Callable[[Artifact, Pooled], Scored]


@dataclass(frozen=True)
class Opened:
    """A record of the media topic whose media is being decoded, or the error that ends its way."""

    record: InRecord
    item: MediaItem | None
    decoding: "Future[Decoded] | None"
    error: MediaError | None
    since: float


@dataclass(frozen=True)
class Judged:
    """A record with its verdict and the message to the memory (None unless unknown), or with its error."""

    record: InRecord
    verdict: Verdict | None
    unknown: bytes | None
    error: MediaError | None
    stage: Stage


@dataclass(frozen=True)
class Batch:
    """Records that are scored by one release and committed in one transaction."""

    artifact: Artifact
    opened: tuple[Opened, ...]


def open_batch(
    records: Sequence[InRecord], artifact: Artifact, sandbox: Sandbox, settings: IngestSettings
) -> Batch:
    """Open each record's envelope and hand its media to the sandbox; returns while that still decodes."""
    return Batch(artifact, tuple(_open(record, artifact, sandbox, settings) for record in records))


def judge(batch: Batch, score: Score, max_request_crops: int, unknown_bytes: int) -> list[Judged]:
    """Wait for the decoding, score in requests of about max_request_crops crops, and build the verdicts.

    The result is in the records' order. Raises what `score` raises, and ingest's SandboxStartError.
    """
    ready: list[tuple[int, Decoded, float]] = []
    judged: dict[int, Judged] = {}
    for i, opened in enumerate(batch.opened):
        if opened.decoding is None:
            judged[i] = Judged(opened.record, None, None, opened.error, "envelope")
            continue
        try:
            decoded = opened.decoding.result()
        except MediaError as error:
            judged[i] = Judged(opened.record, None, None, error, "decode")
        else:
            ready.append((i, decoded, time.perf_counter() - opened.since))
    for part in _requests(ready, max_request_crops):
        judged |= _judge(batch, part, score, unknown_bytes)
    return [judged[i] for i in range(len(batch.opened))]


def verdict_headers(verdict: Verdict) -> list[tuple[str, bytes]]:
    """The attributes of the CloudEvent (Kafka binding, binary mode) whose data is the verdict's JSON."""
    attributes = {
        "ce_specversion": "1.0",
        "ce_id": verdict.id,
        "ce_source": f"/forgewatch/releases/{verdict.release}",
        "ce_type": VERDICT_TYPE,
        "ce_subject": verdict.item.media_id or verdict.id,
        "content-type": "application/json",
    }
    return [(name, value.encode()) for name, value in attributes.items()]


def _open(record: InRecord, artifact: Artifact, sandbox: Sandbox, settings: IngestSettings) -> Opened:
    since = time.perf_counter()
    try:
        item, media = open_envelope(
            record.topic,
            record.partition,
            record.offset,
            record.timestamp_ms,
            record.headers,
            record.value,
            settings,
        )
    except MediaError as error:
        return Opened(record, None, None, error, since)
    return Opened(record, item, sandbox.submit(media, artifact.manifest.media_plan), None, since)


def _requests(
    ready: Sequence[tuple[int, Decoded, float]], most_crops: int
) -> Iterator[list[tuple[int, Decoded, float]]]:
    part: list[tuple[int, Decoded, float]] = []
    crops = 0
    for entry in ready:
        if part and crops + len(entry[1].crops) > most_crops:
            yield part
            part, crops = [], 0
        part.append(entry)
        crops += len(entry[1].crops)
    if part:
        yield part


def _judge(
    batch: Batch, part: Sequence[tuple[int, Decoded, float]], score: Score, unknown_bytes: int
) -> dict[int, Judged]:
    pooled = pooling_for([decoded for _, decoded, _ in part])
    started = time.perf_counter()
    scored = score(batch.artifact, pooled)
    model_s = (time.perf_counter() - started) / len(part)
    sources = []
    for i, _, decode_s in part:
        item = batch.opened[i].item
        assert item is not None
        position = f"{item.topic}-{item.partition}-{item.offset}"
        sources.append(Source(position, item, Timings(decode_s=decode_s, model_s=model_s)))
    verdicts = build(sources, [decoded for _, decoded, _ in part], pooled, scored, batch.artifact)
    judged = {}
    for row, ((i, decoded, _), verdict) in enumerate(zip(part, verdicts, strict=True)):
        unknown = None
        if verdict.label == "unknown":
            unknown = encode(
                verdict,
                decoded.crops,
                scored.features[row],
                scored.embedding[row],
                batch.artifact.manifest.feature_version,
                unknown_bytes,
            )
        judged[i] = Judged(batch.opened[i].record, verdict, unknown, None, "score")
    return judged

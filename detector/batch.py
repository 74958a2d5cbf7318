"""One batch on its way: opened records, decoded media, scores, and messages. No Kafka client in here.

Nothing that one item brings with it stops the others: what fails with others is tried alone, and what
fails alone is judged with the error that becomes its dead letter.
"""

import contextlib
import errno
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass

import structlog

from detector.records import Comparison, Reason, Stage, Timings, Verdict
from detector.release.artifact import Artifact
from detector.release.contract import PICTURE, body_bytes, request_for
from detector.release.tensors import MOST_CROPS, ModelOutput, Request
from detector.second_pass.scan_places import clips, frame_crops_of_videos
from detector.serving.rollout import Route
from detector.serving.torchserve import RequestTooLargeError, TorchServeRefusedError
from detector.settings import DetectorSettings
from detector.unknowns import encode
from detector.verdicts import JudgedItem, Origin, build, evidence_of, not_finite
from ingest.dead_letters import as_fields
from ingest.envelope import open_envelope, trace_of
from ingest.records import Decoded, InRecord, MediaError, MediaItem
from ingest.sandbox.sandbox import Sandbox, SandboxUnavailableError, wait_decoded
from ingest.settings import IngestSettings
from ingest.trace_context import TraceContext

Score = Callable[[Artifact, Request], ModelOutput]
SecondPass = Callable[[Artifact, Sequence[JudgedItem]], Sequence[JudgedItem]]

_HOST_ERRNOS = {errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS}

# What a scan costs beside the first look at a video, in the first look's processor time (RESULTS.md).
_SCAN_COST = 3.8

log = structlog.get_logger()


class UnscorableError(MediaError):
    """An item that cannot be scored, for none of the reasons that ingest knows. Fatal for the item."""

    def __init__(self, reason: Reason, cause: Exception) -> None:
        super().__init__(reason, f"{type(cause).__name__}: {cause}")


class RequestFailedError(UnscorableError):
    """A release fails at a request, or outlasts its deadline, and answers its own probe meanwhile."""


class BatchAbandonedError(Exception):
    """A batch is left unscored through no fault of its items: its records stay uncommitted. Retryable."""


class RecordMedia:
    """The media of one record, which is opened, and fetched where the record only refers to it, when called.

    Until then it costs nothing: small records may name large files, as many as a batch has.
    """

    def __init__(self, record: InRecord, settings: IngestSettings) -> None:
        self.item: MediaItem | None = None
        self._record, self._settings = record, settings

    def __call__(self) -> bytes:
        """Give the bytes; `item` describes them from then on. Raises EnvelopeError."""
        self.item, media = open_envelope(self._record, self._settings)
        return media


@dataclass(frozen=True)
class Opened:
    """A record of the media topic whose media is being decoded for a release; shared: both score it."""

    record: InRecord
    artifact: Artifact
    media: RecordMedia
    decoding: "Future[Decoded]"
    since: float
    shared: bool = False


@dataclass(frozen=True)
class Judged:
    """A record with its verdict and the message to the memory (None unless unknown), or with its error."""

    record: InRecord
    verdict: Verdict | None
    unknown: bytes | None
    error: MediaError | None
    stage: Stage
    trace: TraceContext | None
    """Where the producer says that it is in a trace."""
    release: str
    """Short name of the release that answers."""
    comparison: Comparison | None = None
    """Of a shared item: what both releases said."""


Batch = tuple[Opened, ...]
"""Records that are committed in one transaction, each scored by the stable release."""


def open_batch(records: Sequence[InRecord], route: Route, sandbox: Sandbox, ingest: IngestSettings) -> Batch:
    """Have the sandbox open each record's envelope and decode its media; returns while that goes on."""

    def open_one_record(record: InRecord) -> Opened:
        media, plan = RecordMedia(record, ingest), route.stable.manifest.contract.media_plan
        decoding = sandbox.submit(media, plan)
        return Opened(record, route.stable, media, decoding, time.perf_counter(), route.shares(record.id))

    return tuple(open_one_record(record) for record in records)


def affordable(batch: Batch, most_s: float, beat: Callable[[], None]) -> int:
    """Count the first items, one at least, that cost no more than so many seconds of a processor together.

    What an item costs is known once it is decoded, which is waited for. A scan decodes a video once more.
    """
    spent_s = 0.0
    for number, opened in enumerate(batch):
        began, cost_s = time.monotonic(), 0.0
        with contextlib.suppress(Exception):  # of which the judging makes a dead letter
            decoded = wait_decoded(opened.decoding, beat)
            scanned = decoded.kind == "video" and opened.artifact.manifest.scanner is not None
            cost_s = decoded.processor_s * (1 + _SCAN_COST * scanned)
        spent_s += max(cost_s, time.monotonic() - began)
        if spent_s > most_s and number:
            return number
    return len(batch)


@dataclass(frozen=True)
class PendingItem:
    """An item that waits for its scores: its place in the batch, its record, and its media item."""

    place: int
    opened: Opened
    item: MediaItem
    decoded: Decoded
    decode_s: float


def requests(ready: Sequence[PendingItem], max_crops: int, max_bytes: int) -> Iterator[list[PendingItem]]:
    """Split items into requests within both limits, or of a single item; the items of each stay in order.

    Shared items go in requests of their own: both releases are asked the same, so their seconds compare.
    """
    for shared in dict.fromkeys(item.opened.shared for item in ready):
        part: list[PendingItem] = []
        for item in (item for item in ready if item.opened.shared == shared):
            longer = [*part, item]
            crops = sum(len(pending.decoded.crops) for pending in longer)
            if part and (crops > max_crops or request_bytes(longer) > max_bytes):
                yield part
                longer = [item]
            part = longer
        yield part


def request_bytes(part: Sequence[PendingItem]) -> int:
    """Bound from above the body of a request, bytes."""
    return body_bytes([item.decoded for item in part], part[0].opened.artifact.manifest.contract)


def judge(
    batch: Batch,
    score: Score,
    settings: DetectorSettings,
    unknown_bytes: int,
    beat: Callable[[], None] = lambda: None,
    again: SecondPass = lambda _artifact, items: items,
) -> list[Judged]:
    """Wait for the decoding, score in requests within the settings' limits, and build the verdicts.

    again gives the items that a release has judged after a second look at them. beat is called
    while the decoding of an item is awaited. The result is in the records' order. Raises
    BatchAbandonedError as `score` does, ingest's SandboxUnavailableError, and what is the host's fault
    and no item's: MemoryError, an OSError of full disks.
    """
    ready: list[PendingItem] = []
    judged: dict[int, Judged] = {}
    for place, opened in enumerate(batch):
        try:
            decoded = wait_decoded(opened.decoding, beat)
        except CancelledError as error:
            raise BatchAbandonedError("the sandbox was closed") from error
        except Exception as error:
            stage: Stage = "envelope" if opened.media.item is None else "decode"
            trace = opened.media.item.trace if opened.media.item else trace_of(opened.record.headers)
            release = opened.artifact.version
            fields = as_fields(opened.record, release=release, trace=trace)
            reason = error if isinstance(error, MediaError) else _as_unscorable(error, fields)
            judged[place] = Judged(opened.record, None, None, reason, stage, trace, release)
        else:
            item, decode_s = opened.media.item, time.perf_counter() - opened.since
            assert item is not None
            ready.append(PendingItem(place, opened, item, decoded, decode_s))
    for part in requests(ready, MOST_CROPS, settings.max_request_bytes):
        judged |= _judge_apart(part, score, again, unknown_bytes)
    return [judged[place] for place in range(len(batch))]


def _judge_apart(
    part: list[PendingItem], score: Score, again: SecondPass, unknown_bytes: int, tries: int = 2
) -> dict[int, Judged]:
    """Judge one request's items; those of one that fails go into smaller ones, down to one item each.

    tries: how often an item that is alone may fail at the release before it is the item's fault.
    """
    failed: UnscorableError
    try:
        return _judge(part, score, again, unknown_bytes)
    except RequestFailedError as error:
        log.warning("the release fails at a request", error=str(error), left=tries - 1, **_about(part))
        if len(part) == 1 and tries > 1:
            return _judge_apart(part, score, again, unknown_bytes, tries - 1)
        apart, failed = [[waiting] for waiting in part], error
    except RequestTooLargeError as error:
        event = "request refused as too large: set max_request_bytes below TorchServe's max_request_size"
        log.warning(event, request_bytes=request_bytes(part), **_about(part))
        half = (len(part) + 1) // 2
        apart, failed = [part[:half], part[half:]], UnscorableError("request_too_large", error)
    except TorchServeRefusedError as error:
        apart, failed = [[waiting] for waiting in part], UnscorableError("refused", error)
    except Exception as error:
        apart, failed = [[waiting] for waiting in part], _as_unscorable(error, _about(part))
    if len(part) == 1:
        (alone,) = part
        record, release = alone.opened.record, alone.opened.artifact.version
        failed.claims = alone.decoded.provenance.claims
        return {alone.place: Judged(record, None, None, failed, "score", alone.item.trace, release)}
    judged: dict[int, Judged] = {}
    for smaller in apart:
        judged |= _judge_apart(smaller, score, again, unknown_bytes)
    return judged


def _about(part: list[PendingItem]) -> dict[str, object]:
    """The log's fields about the items of one request."""
    first, release = part[0], part[0].opened.artifact.version
    if len(part) == 1:
        return as_fields(first.opened.record, release=release, trace=first.item.trace)
    return {"items": [waiting.opened.record.id for waiting in part], "release": release}


def _as_unscorable(error: Exception, fields: dict[str, object]) -> UnscorableError:
    """The dead letter's reason for an unforeseen error; raised on where it is no item's fault."""
    host = isinstance(error, OSError) and error.errno in _HOST_ERRNOS
    if host or isinstance(error, MemoryError | BatchAbandonedError | SandboxUnavailableError):
        raise error
    at = traceback.extract_tb(error.__traceback__)[-1]  # no whole traceback: with hostile media it is a flood
    fields |= {"error": f"{type(error).__name__}: {error}", "at": f"{at.filename}:{at.lineno}"}
    log.error("unexpected error of an item or of others in its request", **fields)
    return UnscorableError("unexpected", error)


def _judge(part: list[PendingItem], score: Score, again: SecondPass, unknown_bytes: int) -> dict[int, Judged]:
    artifact, items = part[0].opened.artifact, [waiting.decoded for waiting in part]
    apart = frame_crops_of_videos(items, artifact.manifest)
    request = request_for(items, artifact.manifest.contract, apart)
    started = time.perf_counter()
    output = score(artifact, request)
    model_s = (time.perf_counter() - started) / len(part)
    origins = [
        Origin(waiting.opened.record.id, waiting.item, Timings(decode_s=waiting.decode_s, model_s=model_s))
        for waiting in part
    ]
    verdicts = build(origins, items, output, artifact)
    if wrong := [number for verdict in verdicts for number in not_finite(verdict)]:
        raise TorchServeRefusedError(f"version {artifact.version} answers {', '.join(wrong[:4])}")
    known = clips(items, apart, output["features"], artifact.manifest)
    evidence = evidence_of(items, output)
    seen = [
        JudgedItem(verdict, of_item, waiting.opened.media, clip, of_item.decoded.processor_s)
        for verdict, of_item, waiting, clip in zip(verdicts, evidence, part, known, strict=True)
    ]
    judged = {}
    version = artifact.manifest.feature_version
    for waiting, now in zip(part, again(artifact, seen), strict=True):
        unknown, verdict = None, now.verdict
        if verdict.for_memory:
            decoded, hashes = now.evidence.decoded, waiting.decoded.picture_hashes
            picture = decoded.pictures.get(PICTURE)
            whole = None if picture is None else picture[0]
            rows = decoded.crops, now.evidence.features, now.evidence.embedding
            unknown = encode(verdict, *rows, version, unknown_bytes, whole, hashes)
        record, trace = waiting.opened.record, waiting.item.trace
        judged[waiting.place] = Judged(record, verdict, unknown, None, "score", trace, artifact.version)
    return judged

"""The detector worker's metrics, for Prometheus.

The label `release` is a release's short name, and `family` one of its classes. `forget_release` takes a
retired one's series out, so that they do not pile up.
"""

import math
from collections.abc import Collection, Sequence
from typing import get_args

import structlog
from prometheus_client import Counter, Gauge, Histogram

from detector.records import Label, Reason, Stage, Verdict
from ingest.envelope import EnvelopeReason
from ingest.records import Declaration, Provenance, ProvenanceState
from ingest.sandbox.decode import DecodeReason

log = structlog.get_logger()

OUTCOMES = ("served", "retried", "refused")
_REASONS: dict[Stage, tuple[str, ...]] = {
    "envelope": (*get_args(EnvelopeReason), "unexpected"),
    "decode": (*get_args(DecodeReason), "unexpected"),
    "score": get_args(Reason),
    "commit": ("record_too_large",),
}
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)

CONSUMED = Counter("forgewatch_detector_consumed", "Records taken from the media topic and committed")
VERDICTS = Counter("forgewatch_detector_verdicts", "Verdicts committed", ["label", "release"])
FAKES = Counter("forgewatch_detector_fakes", "Verdicts committed of fake items", ["family", "release"])
PROVENANCE = Counter(
    "forgewatch_detector_provenance",
    "Verdicts committed, by the state of the file's credential and the origin that the file declares",
    ["state", "declares"],
)
INVALID_RISE = Gauge(
    "forgewatch_detector_invalid_credentials_rise",
    "Least rise of a source's share of invalid credentials, the largest of all sources; the log names it",
)
DEAD_LETTERS = Counter("forgewatch_detector_dead_letters", "Dead letters committed", ["stage", "reason"])
END_TO_END = Histogram(
    "forgewatch_detector_end_to_end_seconds",
    "From a record's timestamp to its committed verdict or dead letter",
    buckets=(*_SECONDS, 300, 1800),
)
MODEL = Histogram("forgewatch_detector_model_seconds", "One batch's request to TorchServe", buckets=_SECONDS)
SECOND_LOOK = Histogram(
    "forgewatch_detector_second_look_seconds",
    "One batch's second looks: videos scanned, some judged by a stretch, media not called real mapped",
    buckets=_SECONDS,
)
MAPS = Counter("forgewatch_detector_maps", "Second looks at items not called real, by outcome", ["outcome"])
SCANS = Counter("forgewatch_detector_scans", "Second looks at videos, by outcome", ["outcome"])
LEFT_OUT = Counter("forgewatch_detector_looks_left_out", "Second looks left out as records waited", ["look"])
TOLD_VIDEOS = Counter(
    "forgewatch_detector_told_videos",
    "Verdicts committed on videos in which a stretch is told as forged, by what the video is called",
    ["label"],
)
BATCH_ITEMS = Histogram(
    "forgewatch_detector_batch_items", "Items committed in one transaction", buckets=(1, 2, 4, 8, 16, 32, 64)
)
BATCH_CROPS = Histogram(
    "forgewatch_detector_batch_crops", "Crops in one request to TorchServe", buckets=(1, 4, 16, 64, 256, 1024)
)
ENERGY = Histogram(
    "forgewatch_detector_energy",
    "Energy of scored items: higher means less familiar",
    ["release"],
    buckets=(-20, -15, -10, -8, -6, -5, -4, -3, -2, -1, 0, 2, 5),
)
UNKNOWN_SCORE = Histogram(
    "forgewatch_detector_unknown_score",
    "Fused score of the gate: higher means less familiar",
    ["release"],
    buckets=(-10, -5, -3, -2, -1, 0, 1, 2, 3, 4, 5, 7, 10, 15, 25),
)
MODEL_RETRIES = Counter("forgewatch_detector_model_retries", "Requests to TorchServe that were tried again")
TORCHSERVE_READY = Gauge(
    "forgewatch_detector_torchserve_ready",
    "1 where TorchServe has a ready worker for each release that scores; asked when scraped",
)
SWAPS = Counter("forgewatch_detector_swaps", "Changes of the release that scores", ["outcome"])
SERVING = Gauge("forgewatch_detector_serving", "1 for each release that scores", ["release"])
UNSERVED_SINCE = Gauge(
    "forgewatch_detector_unserved_since_timestamp_seconds",
    "Since when a slot does not serve the release that it should, Unix time; 0 where it does",
    ["slot"],
)
ROLLOUT_STATE = Gauge(
    "forgewatch_detector_rollout_state",
    "1 for how deploy last answered whether the releases topic names what is approved",
    ["state"],
)
UNCONFIRMED_ROLLOUTS = Counter(
    "forgewatch_detector_unconfirmed_rollouts", "Records of the releases topic that deploy did not confirm"
)
SHARED = Counter(
    "forgewatch_detector_shared_items",
    "Items that two releases were to score: compared, failed (the challenger gave no verdict), or left_out",
    ["outcome"],
)
RETRACTION_BEHIND = Gauge(
    "forgewatch_detector_retraction_behind",
    "Offsets of the verdicts topic that this worker's retractions have not read yet; 0: none is under way",
)
RETRACTED = Counter(
    "forgewatch_detector_retracted",
    "Verdicts of releases that were taken back, by outcome; forged: not the release's that its header names",
    ["outcome"],
)
RETRACTION_LOST = Counter(
    "forgewatch_detector_retraction_lost", "Verdicts that their topic deleted before they were taken back"
)
RETRACTION_FAILURES = Counter(
    "forgewatch_detector_retraction_failures", "Rounds of a retraction that failed and were done again"
)

# A counter that first shows with its first events has no increase that a rate would see.
_LABELS: dict[Counter, tuple[str, ...]] = {
    SWAPS: OUTCOMES,
    **dict.fromkeys((MAPS, SCANS), ("made", "failed")),
    LEFT_OUT: ("scan", "map"),
    SHARED: ("compared", "failed", "left_out"),
    RETRACTED: ("same", "corrected", "withdrawn", "forged"),
    TOLD_VIDEOS: get_args(Label),
}
for _counter, _values in _LABELS.items():
    for _value in _values:
        _counter.labels(_value)
for _stage, _reasons in _REASONS.items():
    for _reason in _reasons:
        DEAD_LETTERS.labels(_stage, _reason)
for _state in get_args(ProvenanceState):
    for _declares in (*get_args(Declaration), "nothing"):
        PROVENANCE.labels(_state, _declares)

_BLOCK, _MOST_BEFORE, _MOST_SOURCES = 40, 200, 1000
_credentials: dict[str, tuple[float, float, int, int, float]] = {}


def count_provenance(provenance: Provenance, source: str) -> None:
    """Count a file's statements, and hold the source's last 40 credentials against its up to 200 before.

    While more of them are invalid than before, the ones before stay.
    """
    declares = provenance.declares or provenance.metadata.declares or "nothing"
    PROVENANCE.labels(provenance.state, declares).inc()
    if provenance.state not in ("valid_trusted", "valid_untrusted", "invalid"):
        return
    before, invalid_before, last, invalid, rise = _credentials.pop(source, (0, 0, 0, 0, 0))
    last, invalid = last + 1, invalid + (provenance.state == "invalid")
    if last == _BLOCK:
        was, rise = rise, _least_rise(invalid, last, invalid_before, before)
        if rise and not was:
            log.warning("more credentials of a source are invalid than before", source=source)
        if not rise:
            kept = min(1, _MOST_BEFORE / (before + last))
            before, invalid_before = kept * (before + last), kept * (invalid_before + invalid)
        last = invalid = 0
    _credentials[source] = before, invalid_before, last, invalid, rise
    if len(_credentials) > _MOST_SOURCES:
        del _credentials[next(iter(_credentials))]
    INVALID_RISE.set(max(rise for *_, rise in _credentials.values()))


def _least_rise(now: int, of: int, before: float, of_before: float) -> float:
    """Return the lower end of a share's rise, in 99.7 % (Agresti and Caffo 2000), no less than 0."""
    share, share_before = (now + 1) / (of + 2), (before + 1) / (of_before + 2)
    variance = share * (1 - share) / (of + 2) + share_before * (1 - share_before) / (of_before + 2)
    return max(0.0, share - share_before - 3 * math.sqrt(variance))


def count_second_looks(added: Collection[str], verdicts: Sequence[Verdict]) -> None:
    """Count the second looks that added to verdicts, or could not.

    added: the verdict's fields that the release can fill.
    """
    for verdict in verdicts:
        for look in verdict.left_out:
            LEFT_OUT.labels(look).inc()
        if verdict.label != "real" and "map" in added and "map" not in verdict.left_out:
            MAPS.labels("failed" if verdict.map is None else "made").inc()
        if verdict.kind == "video" and "scan" in added and "scan" not in verdict.left_out:
            SCANS.labels("failed" if verdict.scan is None else "made").inc()


def serve_release(release: str, families: Sequence[str]) -> None:
    """Show that a release of these families scores, and its series, at zero where they are new."""
    for label in get_args(Label):
        VERDICTS.labels(label, release)
    for family in families:
        FAKES.labels(family, release)
    for histogram in (ENERGY, UNKNOWN_SCORE):
        histogram.labels(release)
    SERVING.labels(release).set(1)


def forget_release(release: str) -> None:
    for labels in (ENERGY, UNKNOWN_SCORE, SERVING, VERDICTS, FAKES):
        labels.remove_by_labels({"release": release})

"""A video that is called real though a stretch of it is told is judged by that stretch."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
from verdicts import look, make_evidence, make_item, make_verdict

from detector.records import Scan, Segment, Verdict
from detector.release.artifact import Artifact
from detector.release.tensors import ModelOutput, Request
from detector.second_look import run_second_pass
from detector.second_pass.scan_look import StretchLook
from detector.serving.session import ReleaseSession
from detector.verdicts import JudgedItem, VideoClip
from ingest.sandbox.extract import extract
from updater.distortions.clip_writing import to_h264

pytestmark = pytest.mark.slow

SCAN = Scan(frames=30, step_s=1 / 12, threshold=0.3, times_s=(), scores=())


def clip() -> bytes:
    """30 frames of noise at 12 a second."""
    frames = np.random.default_rng(0).integers(0, 256, (30, 96, 160, 3), np.uint8)
    return to_h264(frames, 12, "mp4")


def segment(first: int, last: int, score: float = 0.9) -> Segment:
    return Segment(
        start_s=first / 12, end_s=(last + 1) / 12, frames=(first, last), score=score, box=(0, 0, 64, 64)
    )


def seen(segments: tuple[Segment, ...] | None, label: str = "real") -> JudgedItem:
    data = clip()
    item = make_item(digest=hashlib.sha256(data).hexdigest())
    said = {"label": label, "kind": "video", "format": "mp4", "width": 160, "height": 96}
    verdict = make_verdict(item, **said, segments=segments, scan=SCAN)
    return JudgedItem(verdict, make_evidence(), lambda: data, VideoClip(30, (0, 0)))


def with_gate(artifact: Artifact, unknown_threshold: float, fake_threshold: float) -> Artifact:
    gate = artifact.manifest.gate.model_copy(
        update={"unknown_threshold": unknown_threshold, "fake_threshold": fake_threshold}
    )
    return replace(artifact, manifest=artifact.manifest.model_copy(update={"gate": gate}))


def judged(artifact: Artifact, one: JudgedItem) -> JudgedItem:
    (now,) = run_second_pass([one], [StretchLook(artifact, ReleaseSession(artifact, 1).score)], look)
    return now


@pytest.mark.parametrize(
    ("gate", "label"), [((99.0, 1.0), "unknown"), ((99.0, 0.0), "fake"), ((-99.0, 0.0), "unknown")]
)
def test_it_is_called_what_its_surest_stretch_is_and_never_real(scanned_artifact, gate, label):
    artifact = with_gate(scanned_artifact, *gate)
    before = seen((segment(9, 20), segment(25, 29, 0.4)))
    now = judged(artifact, before)
    verdict = now.verdict
    assert verdict.label == label
    assert verdict.family in artifact.manifest.classes[1:]
    assert (verdict.scan, verdict.segments) == (before.verdict.scan, before.verdict.segments)
    assert (verdict.id, verdict.item) == (before.verdict.id, before.verdict.item)
    assert verdict.timings.stretch_s > 0
    frames = [region.frame for region in verdict.regions if region.kind == "frame"]
    assert len(frames) == artifact.manifest.contract.crop_plan.frames
    assert 9 <= min(frames) < max(frames) <= 20


def test_what_a_person_is_shown_is_the_stretch(scanned_artifact):
    look_at = StretchLook(scanned_artifact, ReleaseSession(scanned_artifact, 1).score)
    before = seen((segment(9, 20),))
    now = judged(scanned_artifact, before)
    expected = extract(clip(), look_at.plan(before), 1_000_000)
    np.testing.assert_array_equal(now.evidence.decoded.crops, expected.crops)
    for name, picture in expected.pictures.items():
        np.testing.assert_array_equal(now.evidence.decoded.pictures[name], picture)
    assert np.abs(now.evidence.features).sum() > 0
    assert np.abs(now.evidence.embedding).sum() > 0


@pytest.mark.parametrize(
    ("segments", "label"),
    [((), "real"), (None, "real"), ((segment(9, 20),), "fake"), ((segment(9, 20),), "unknown")],
)
def test_without_a_stretch_and_where_it_is_not_called_real_all_stays(scanned_artifact, segments, label):
    before = seen(segments, label)
    assert judged(scanned_artifact, before) is before


def test_where_the_model_cannot_answer_the_scanners_word_stands_and_it_is_not_called_real(scanned_artifact):
    def refuse(request: Request) -> ModelOutput:
        raise RuntimeError("what a runtime raises")

    before = seen((segment(9, 20),))
    (now,) = run_second_pass([before], [StretchLook(scanned_artifact, refuse)], look)
    assert (now.verdict.label, now.verdict.segments) == ("unknown", before.verdict.segments)
    assert now.verdict.unscanned == "RuntimeError: what a runtime raises"
    assert now.evidence is before.evidence


def test_a_stretch_of_few_frames_is_judged_by_all_of_them(scanned_artifact):
    verdict: Verdict = judged(scanned_artifact, seen((segment(12, 14),))).verdict
    assert [region.frame for region in verdict.regions if region.kind == "frame"] == [12, 13, 14]

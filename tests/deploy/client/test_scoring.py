"""Scoring without Kafka: the worker's own steps on a real, if untrained, release."""

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from media import encode
from PIL import Image

from deploy.cli.output import print_json, say, warn
from deploy.cli.stream import draw
from deploy.client.kafka import event_headers
from deploy.client.pictures import draw_map, draw_scan
from deploy.client.scoring import NoVerdictError, Scorer
from detector.release import crop_graphs
from detector.release.artifact import Artifact
from detector.second_pass.scan_look import ScanLook
from detector.settings import DetectorSettings
from ingest.sandbox.sandbox import Sandbox
from ingest.settings import IngestSettings
from updater.distortions.clip_writing import to_h264

MEDIA = Path(__file__).parents[4] / "shared" / "media"

LARGE_BYTES = 300_000

pytestmark = pytest.mark.slow


def picture(seed):
    pixels = np.random.default_rng(seed).integers(0, 256, (200, 160, 3), dtype=np.uint8)
    return encode(Image.fromarray(pixels), "PNG")


def test_a_file_gets_the_releases_verdict_and_a_bad_one_its_reason(untrained_artifact, tmp_path):
    names = "a.png", "b.png", "bad.jpg", "e.png", "l.png"
    good, again, bad, empty, large = (tmp_path / name for name in names)
    good.write_bytes(picture(0))
    again.write_bytes(picture(0))
    bad.write_bytes(b"\xff\xd8 no picture")
    empty.write_bytes(b"")
    ingest = IngestSettings(max_media_bytes=100, max_fetched_bytes=1_000_000)
    with large.open("wb") as file:
        file.truncate(ingest.max_fetched_bytes + 1)
    with Sandbox(ingest) as sandbox:
        scorer = Scorer(untrained_artifact, sandbox, ingest, DetectorSettings())
        first, second = scorer.score(good), scorer.score(again)
        assert first.release == untrained_artifact.digest
        assert (first.width, first.height, first.format) == (160, 200, "PNG")
        assert first.item.declared_type == "image/png"
        assert first.id != second.id
        assert scorer.score(good, source="/cameras/7").item.source == "/cameras/7"
        own = {"id", "item", "timings"}
        assert first.model_dump(exclude=own) == second.model_dump(exclude=own)
        for path, reason in ((bad, "bad.jpg: "), (empty, "e.png: "), (large, "too large")):
            with pytest.raises(NoVerdictError, match=reason):
                scorer.score(path)
        with pytest.raises(FileNotFoundError):
            scorer.score(tmp_path / "nowhere.png")


def test_what_is_not_called_real_has_a_map_unless_maps_mark_too_many_genuine_pictures(
    untrained_artifact, localized_artifact, tmp_path, monkeypatch
):
    (path := tmp_path / "a.png").write_bytes(picture(0))
    ingest = IngestSettings()
    with Sandbox(ingest) as sandbox:
        scorer = Scorer(localized_artifact, sandbox, ingest, DetectorSettings())
        verdict = scorer.score(path)
        assert verdict.label == "unknown"
        assert verdict.map is not None
        assert verdict.map.part == (0, 0, 160, 200)
        shown = scorer.picture(path, verdict)
        np.testing.assert_array_equal(shown, np.asarray(Image.open(path)))
        assert draw_map(shown, verdict.width, verdict.map).size == (160, 200)
        without = Scorer(untrained_artifact, sandbox, ingest, DetectorSettings())
        assert without.score(path, dense=True).map is None
        monkeypatch.setattr(crop_graphs, "MAX_REALS_MARKED", -0.1)
        assert scorer.score(path, dense=True).map is None
        assert "mark 0 % of genuine pictures" in (scorer.map_problem or "")


def test_only_a_dense_look_maps_what_is_called_real(localized_artifact, tmp_path):
    (path := tmp_path / "a.png").write_bytes(picture(0))
    gate = localized_artifact.manifest.gate.model_copy(
        update={"unknown_threshold": 99.0, "fake_threshold": 1.0}
    )
    manifest = localized_artifact.manifest.model_copy(update={"gate": gate})
    artifact = Artifact(localized_artifact.folder, manifest, localized_artifact.digest)
    ingest = IngestSettings()
    with Sandbox(ingest) as sandbox:
        scorer = Scorer(artifact, sandbox, ingest, DetectorSettings())
        assert (scorer.score(path).label, scorer.score(path).map) == ("real", None)
        assert scorer.score(path, dense=True).map is not None


def test_a_video_not_called_real_has_a_scan_and_frames(localized_artifact, scanned_artifact, tmp_path):
    rng = np.random.default_rng(0)
    frames = rng.integers(100, 140, (30, 96, 128, 3), np.uint8)
    frames[10:20] = rng.integers(0, 256, (10, 96, 128, 3), np.uint8)
    (path := tmp_path / "a.mp4").write_bytes(to_h264(frames, 12, "mp4"))
    ingest = IngestSettings()
    with Sandbox(ingest) as sandbox:
        scorer = Scorer(scanned_artifact, sandbox, ingest, DetectorSettings())
        verdict, again = scorer.score(path), scorer.score(path)
        assert (verdict.kind, verdict.label) == ("video", "unknown")
        assert verdict.scan is not None
        assert verdict.segments is not None
        assert verdict.scan.frames == 30
        assert np.ptp(verdict.scan.scores) > 0
        assert (again.scan, again.segments, again.map) == (verdict.scan, verdict.segments, verdict.map)
        shown = scorer.frames(path, verdict)
        assert [one.shape for one in shown] == [(96, 128, 3)] * 8
        assert draw_scan(shown, verdict.scan, verdict.segments).width == 960
        for _ in range(2):
            draw(scorer, path, verdict, tmp_path)
        assert {one.name for one in tmp_path.glob("*.png")} == {
            f"a.mp4{again}.{what}.png" for again in ("", "-2") for what in ("map", "time")
        }
        without = Scorer(localized_artifact, sandbox, ingest, DetectorSettings()).score(path)
        assert (without.scan, without.segments, without.map is None) == (None, None, False)
        own = {"id", "item", "timings", "release", "scan", "segments"}
        assert without.model_dump(exclude=own) == verdict.model_dump(exclude=own)


@pytest.mark.parametrize("container", ["GIF", "WEBP", "AVIF", "PNG"])
def test_an_animated_picture_is_scanned_as_the_video_that_it_is(scanned_artifact, tmp_path, container):
    pixels = np.random.default_rng(0).integers(0, 256, (12, 64, 80, 3), np.uint8)
    frames = [Image.fromarray(one) for one in pixels]
    path = tmp_path / "moving"
    frames[0].save(path, container, save_all=True, append_images=frames[1:], duration=100)
    with Sandbox(IngestSettings()) as sandbox:
        verdict = Scorer(scanned_artifact, sandbox, IngestSettings(), DetectorSettings()).score(path)
    assert (verdict.kind, verdict.format) == ("video", container)
    assert verdict.scan is not None
    assert (verdict.scan.frames, verdict.scan.left_out, verdict.unscanned) == (12, 0, None)


@pytest.mark.parametrize("marked", [True, False], ids=["unknown", "control: the verdict goes out as it was"])
def test_a_video_whose_codec_stops_a_scan_is_not_real(scanned_artifact, tmp_path, monkeypatch, marked):
    if not marked:
        monkeypatch.setattr(ScanLook, "was_missed", lambda *_: False)
    # Its first look leaves no time for another; by its scores it would be real.
    monkeypatch.setattr("detector.second_pass.scan_look.MAX_DECODE_PROCESSOR_S", 0.0)
    gate = scanned_artifact.manifest.gate.model_copy(
        update={"unknown_threshold": 99.0, "fake_threshold": 1.0, "sources": {}}
    )
    artifact = replace(scanned_artifact, manifest=scanned_artifact.manifest.model_copy(update={"gate": gate}))
    frames = np.random.default_rng(0).integers(100, 140, (12, 96, 128, 3), np.uint8)
    (path := tmp_path / "a.mp4").write_bytes(to_h264(frames, 12, "mp4"))
    with Sandbox(IngestSettings()) as sandbox:
        verdict = Scorer(artifact, sandbox, IngestSettings(), DetectorSettings()).score(path)
    assert verdict.scan is None
    assert (verdict.label, verdict.unscanned is not None) == ("unknown" if marked else "real", marked)


def test_every_odd_video_ends_in_a_verdict_with_its_scan_or_in_a_reason(scanned_artifact):
    # The large ones are ordinary films, each of which takes seconds.
    videos = [path for path in (MEDIA / "video").glob("*") if path.stat().st_size < LARGE_BYTES]
    odd = [*videos, *(MEDIA / "hostile").glob("*mp4*")]
    if not odd:
        pytest.skip("the shared media are not here")
    ingest = IngestSettings()
    scanned = 0
    alone = scanned_artifact.manifest.model_copy(update={"localizer": None})
    artifact = Artifact(scanned_artifact.folder, alone, scanned_artifact.digest)
    with Sandbox(ingest) as sandbox:
        scorer = Scorer(artifact, sandbox, ingest, DetectorSettings())
        for path in sorted(odd):
            try:
                verdict = scorer.score(path)
            except NoVerdictError:
                continue
            assert (verdict.scan is not None) == (verdict.kind == "video"), path.name
            if verdict.scan is None:
                continue
            scanned += 1
            assert verdict.segments is not None
            assert 1 <= verdict.scan.frames == len(verdict.scan.scores) == len(verdict.scan.times_s) <= 96
            for segment in verdict.segments:
                assert 0 <= segment.start_s < segment.end_s, path.name
                assert 0 <= segment.frames[0] <= segment.frames[1], path.name
    assert scanned >= 15


def test_a_file_whose_name_is_no_utf_8_is_sent_and_printed(capsys):
    path = Path(os.fsdecode(b"/media/f\xe9.jpg"))
    headers = dict(event_headers(path))
    assert headers["ce_id"].startswith(b"f%E9.jpg-")
    assert headers["ce_source"] == b"/media"
    print_json({"file": str(path)})
    say(f"t-0-1  {path}")
    warn(str(path))
    printed = capsys.readouterr()
    assert json.loads(printed.out.splitlines()[0]) == {"file": str(path)}

"""A release with all graphs in a real TorchServe: a map of what is not called real, a scan of each video."""

import base64
import shutil
from functools import partial
from io import BytesIO
from threading import Event
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from PIL import Image
from prometheus_client import REGISTRY

from detector.batch import judge, open_batch
from detector.records import Verdict
from detector.release.artifact import LOCALIZER, SCANNER, Artifact
from detector.release.crop_graphs import CELLS, FRAME_SCORE
from detector.release.tensors import write_probe
from detector.second_look import run_second_pass, second_looks
from detector.second_pass.map_look import assemble_map, covering
from detector.serving.rollout import Route
from detector.serving.session import ReleaseSession
from detector.serving.torchserve import MODEL_NAME, ProbeError
from detector.settings import DetectorSettings
from detector.unknowns import decode as decode_unknown
from detector.worker import InFlightBatch, Worker
from ingest.process.health import Heartbeat
from ingest.records import InRecord
from ingest.sandbox.crops import cut
from ingest.sandbox.sandbox import Sandbox
from ingest.settings import IngestSettings
from updater.distortions.clip_writing import to_h264

pytestmark = pytest.mark.system

CROP_PX = 64


SIDES = ((150, 200), (64, 64), (400, 600))


def pixels(number):
    height, width = SIDES[number % len(SIDES)]
    return np.random.default_rng(number).integers(0, 256, (height, width, 3), np.uint8)


def photograph(number):
    file = BytesIO()
    Image.fromarray(pixels(number)).save(file, "PNG")
    return file.getvalue()


def video(number):
    """Noise of one strength, and of another in its middle third."""
    rng = np.random.default_rng(number)
    frames = rng.integers(100, 140, (30, 96, 160, 3), np.uint8)
    frames[10:20] = rng.integers(0, 256, (10, 96, 160, 3), np.uint8)
    return to_h264(frames, 12, "mp4")


def asked(pictures, crops):
    rows = np.random.default_rng(pictures).integers(0, 256, (pictures * crops, CROP_PX, CROP_PX, 3), np.uint8)
    return {"crops": rows, "of_picture": np.repeat(np.arange(pictures), crops)}


@pytest.fixture(scope="module")
def artifact(scanned_artifact):
    return scanned_artifact


def test_all_graphs_say_there_what_their_probes_say(client, artifact):
    worst = client.probe(artifact)
    assert max(worst[CELLS], worst[FRAME_SCORE]) < 1e-4


def test_a_localizer_that_says_something_else_is_refused(client, artifact, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(artifact.folder, other)
    request = asked(2, 2)
    write_probe(other / LOCALIZER.probe, request, {CELLS: np.ones((4, 8, 8), np.float32)})
    with pytest.raises(ProbeError, match=r"localizer\.onnx does not score as it must: cells differs"):
        client.probe(Artifact(other, artifact.manifest, artifact.digest))


def test_a_scanner_that_says_something_else_is_refused(client, artifact, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(artifact.folder, other)
    request = {"crops": asked(1, 6)["crops"]}
    write_probe(other / SCANNER.probe, request, {FRAME_SCORE: np.full(6, 2, np.float32)})
    with pytest.raises(ProbeError, match=r"scanner\.onnx does not score as it must: frame_score differs"):
        client.probe(Artifact(other, artifact.manifest, artifact.digest))


def test_videos_of_the_stream_have_the_segments_that_they_have_here(client, artifact, torchserve):
    data = [video(number) for number in range(2)]
    records = [InRecord("media", 0, number, 0, None, one, ()) for number, one in enumerate(data)]

    here = ReleaseSession(artifact, 1).score

    def again(of, seen):
        return run_second_pass(seen, second_looks(of, here), sandbox.submit)

    settings = DetectorSettings()
    source = SimpleNamespace(resume=lambda: None)
    none = None
    made = {"outcome": "made"}
    before = REGISTRY.get_sample_value("forgewatch_detector_scans_total", made) or 0
    with Sandbox(IngestSettings(decode_processes=2)) as sandbox:
        worker = Worker(
            source, sandbox, client, none, none, IngestSettings(), settings, Event(), Heartbeat(60)
        )

        def streamed_by(route, records):
            judged = []
            while rest := records[len(judged) :]:
                batch = open_batch(rest, route, sandbox, IngestSettings())
                judged += worker._judge(InFlightBatch(rest, batch, route, None, 0), waiting=False)[1]
            return judged

        streamed = streamed_by(Route(artifact), records)
        batch = open_batch(records, Route(artifact), sandbox, IngestSettings())
        alone = judge(batch, lambda _, asked: here(asked), settings, 900_000, again=again)
        calm = artifact.manifest.gate.model_copy(update={"unknown_threshold": 99.0, "fake_threshold": 1.0})
        manifest = artifact.manifest.model_copy(update={"gate": calm})
        to_which_all_is_real = Route(Artifact(artifact.folder, manifest, artifact.digest))
        (doubted,) = streamed_by(to_which_all_is_real, records[:1])
    there, expected = ([one.verdict for one in judged if one.verdict] for judged in (streamed, alone))
    for one, other in zip(there, expected, strict=True):
        assert one.scan is not None
        assert other.scan is not None
        np.testing.assert_allclose(one.scan.scores, other.scan.scores, atol=2e-3)
        assert other.segments
        ends = [[found.frames for found in said.segments or ()] for said in (one, other)]
        assert np.abs(np.subtract(*ends)).max() <= 1
    assert doubted.verdict is not None
    assert doubted.unknown is not None
    assert (doubted.verdict.scan, doubted.verdict.segments) == (there[0].scan, there[0].segments)
    assert doubted.verdict.segments is not None
    first, last = doubted.verdict.segments[0].frames
    shown = decode_unknown(doubted.unknown)
    assert shown.verdict == doubted.verdict
    assert {first <= region.frame <= last for region in shown.verdict.regions} == {True}
    assert doubted.verdict.unknown_score <= doubted.verdict.unknown_threshold
    assert doubted.verdict.family in manifest.classes
    assert doubted.verdict.map is not None
    assert first <= doubted.verdict.map.frame <= last
    assert REGISTRY.get_sample_value("forgewatch_detector_scans_total", made) == before + 3
    answer = httpx.post(
        f"{torchserve.inference_url}/predictions/{MODEL_NAME}/{artifact.version}",
        content=data[0],
        headers={"content-type": "application/octet-stream"},
        timeout=60,
        trust_env=False,
    )
    by_hand = Verdict.model_validate(answer.json() | {"id": "", "item": there[0].item})
    assert (by_hand.scan, by_hand.segments) == (there[0].scan, there[0].segments)


def test_what_is_not_called_real_comes_with_the_map_of_its_own_picture(client, artifact):
    records = [InRecord("media", 0, i, 0, None, photograph(i), ()) for i in range(6)]
    contract = artifact.manifest.localizer
    assert contract is not None
    with Sandbox(IngestSettings(decode_processes=2)) as sandbox:

        def again(of, seen):
            return run_second_pass(seen, second_looks(of, partial(client.predict, of)), sandbox.submit)

        batch = open_batch(records, Route(artifact), sandbox, IngestSettings())
        judged = judge(batch, client.predict, DetectorSettings(), 900_000, again=again)
    session = ReleaseSession(artifact, 1)
    for number, one in enumerate(judged):
        assert one.verdict is not None
        assert one.verdict.map is not None
        picture = pixels(number)
        height, width, _ = picture.shape
        corners, part = covering(width, height, CROP_PX)
        assert one.verdict.map.part == part
        crops = cut(picture, corners, CROP_PX)
        cells = session.score({"crops": crops, "of_picture": np.zeros(len(crops), np.int64)})[CELLS]
        png = Image.open(BytesIO(base64.b64decode(one.verdict.map.png)))
        expected = assemble_map(cells, corners, part).cells * 255
        np.testing.assert_allclose(np.asarray(png, float), expected, atol=2)


def test_a_file_that_is_sent_by_hand_gets_its_map_too(client, torchserve, artifact):
    answer = httpx.post(
        f"{torchserve.inference_url}/predictions/{MODEL_NAME}/{artifact.version}",
        content=photograph(0),
        headers={"content-type": "application/octet-stream"},
        timeout=60,
        trust_env=False,
    )
    assert answer.status_code == 200
    assert answer.json()["label"] == "unknown"
    assert answer.json()["map"]["part"] == [0, 0, 200, 150]

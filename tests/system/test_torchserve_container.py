"""TorchServe as a container starts it: the process itself, without a container around it."""

import base64
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from io import BytesIO
from threading import Event
from types import SimpleNamespace

import httpx
import numpy as np
import psutil
import pytest
from PIL import Image
from prometheus_client import REGISTRY
from serving_faults import still_run

from deploy.local.processes import PortTakenError, ProcessDiedError, alive, free_port
from deploy.local.torchserve import answers, start_torchserve
from detector.batch import judge, open_batch
from detector.records import Verdict
from detector.release.artifact import LOCALIZER, SCANNER, Artifact
from detector.release.crop_graphs import CELLS, FRAME_SCORE
from detector.release.tensors import write_probe
from detector.second_look import run_second_pass, second_looks
from detector.second_pass.map_look import assemble_map, covering
from detector.serving import torchserve_launch
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

MOST_S = 30.0


"""What a container has to end in."""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path):
    """Start `python -m detector.serving.torchserve_launch` with its sockets in the test's folder."""
    processes = []

    def begin(**settings):
        own = {
            "FORGEWATCH_LOG_FORMAT": "json",
            "FORGEWATCH_DETECTOR_TORCHSERVE_URL": f"http://127.0.0.1:{free_port()}",
            "FORGEWATCH_DETECTOR_TORCHSERVE_MANAGEMENT_URL": f"unix:{tmp_path}/run/management.sock",
            "FORGEWATCH_DETECTOR_MODEL_STORE_DIR": str(tmp_path / "store"),
            "TMPDIR": str(tmp_path),
        }
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("FORGEWATCH_")
        }
        processes.append(
            subprocess.Popen(
                [sys.executable, "-m", "detector.serving.torchserve_launch"],
                env=environment | own | settings,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return processes[-1]

    yield begin
    for process in processes:
        for each in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else ():
            each.kill()
        process.kill()
        process.communicate()


def await_started(process):
    assert process.stderr is not None
    for line in process.stderr:
        for event in events([line]):
            if event["event"] == "started":
                return event
    raise AssertionError("it ended before it had started")


def await_answers(event):
    while not answers(event["inference"], f"unix:{event['sockets']}/management.sock"):
        pass


def said(process):
    _, lines = process.communicate(timeout=180)
    return events(lines.splitlines())


def events(lines):
    """What the process itself logs; the JVM has a word of its own to say on the same stream."""
    return [json.loads(line) for line in lines if line.startswith("{")]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("FORGEWATCH_DETECTOR_TORCHSERVE_URL", "http://torchserve:8080"),
        ("FORGEWATCH_DETECTOR_TORCHSERVE_URL", "http://127.0.0.1:99999"),
        ("FORGEWATCH_DETECTOR_TORCHSERVE_MANAGEMENT_URL", "http://127.0.0.1:8081"),
        ("FORGEWATCH_DETECTOR_TORCHSERVE_MANAGEMENT_URL", "unix:management.sock"),
        ("FORGEWATCH_DETECTOR_MODEL_THREADS", "many"),
    ],
)
def test_a_wrong_setting_is_one_line_that_names_it_and_2(start, setting, value):
    process = start(**{setting: value})
    (event,) = said(process)
    assert (process.returncode, event["event"], event["setting"]) == (2, "wrong setting", setting)


@pytest.mark.bar("K2")
def test_it_answers_over_sockets_that_a_killed_one_left_and_ends_with_0_when_told(start, tmp_path, bar):
    (tmp_path / "run").mkdir()
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / "run" / "management.sock"))
    turns, longest_s = bar.times(1, 20), 0.0
    for _ in range(turns):
        process = start()
        await_answers(await_started(process))
        children, told_s = psutil.Process(process.pid).children(recursive=True), time.monotonic()
        process.send_signal(signal.SIGTERM)
        assert [event["event"] for event in said(process)] == ["told to stop"]
        longest_s = max(longest_s, time.monotonic() - told_s)
        assert process.returncode == 0
        assert not still_run(children)
    print(f"{turns} times, longest {longest_s:.1f} s")
    bar.count(turns)
    assert longest_s < MOST_S


def test_a_server_that_ends_by_itself_ends_the_container_with_1(start):
    process = start()
    await_started(process)
    psutil.Process(process.pid).children()[0].kill()
    (event,) = said(process)
    assert "TorchServe ended by itself with status -9" in event["error"]
    assert process.returncode == 1


def ask(server, path):
    transport = httpx.HTTPTransport(uds=server.management.removeprefix("unix:"))
    with httpx.Client(transport=transport, base_url="http://torchserve") as client:
        return client.get(path)


def test_an_empty_server_answers_and_has_no_model(torchserve):
    assert httpx.get(f"{torchserve.inference_url}/ping").json() == {"status": "Healthy"}
    assert ask(torchserve, "/models").is_success


def test_management_listens_nowhere_but_in_a_folder_of_this_user(torchserve):
    assert stat.S_IMODE(torchserve.sockets.stat().st_mode) == 0o700
    for connection in psutil.Process(torchserve.process.pid).net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN:
            assert connection.laddr.ip.removeprefix("::ffff:") == "127.0.0.1"
    assert httpx.get(f"{torchserve.inference_url}/models").status_code != 200


def test_two_servers_do_not_meet_and_stopping_one_leaves_the_other(torchserve, tmp_path, capfd):
    second = start_torchserve(tmp_path)
    assert second.port != torchserve.port
    second.stop()
    assert not alive(second.process)
    assert not second.sockets.exists()
    assert answers(torchserve.inference_url, torchserve.management)
    assert capfd.readouterr() == ("", "")


def test_a_folder_too_deep_for_a_socket_is_no_hindrance(tmp_path):
    deep = start_torchserve(tmp_path / ("deep" * 25))
    try:
        assert len(os.fsencode(deep.sockets)) < 90
        assert ask(deep, "/models").is_success
    finally:
        deep.stop()
    assert not deep.sockets.exists()


def test_a_port_that_is_taken_is_told_before_anything_starts(torchserve, tmp_path):
    with pytest.raises(PortTakenError, match=rf"port {torchserve.port} "):
        start_torchserve(tmp_path / "torchserve", torchserve.port)
    assert not (tmp_path / "torchserve").exists()


def test_a_server_that_dies_is_told_with_its_own_words_and_leaves_no_socket(tmp_path, monkeypatch):
    monkeypatch.setattr(torchserve_launch, "_PROPERTIES", "inference_address=http://nowhere:many\n")
    with pytest.raises(ProcessDiedError, match=r"(?s)torchserve ended.*http://nowhere:many"):
        start_torchserve(tmp_path)
    assert not (tmp_path / "tmp").exists()


# A release with all graphs in a real TorchServe: a map of what is not called real, a scan of each video.
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

import json
import shutil
import subprocess
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest
import skimage
from poison import ENDLESS

from detector.release.artifact import MODEL, PROBE, load, seal
from detector.release.tensors import REQUEST_TYPE, encode, read_probe, write_probe
from detector.serving.loading import pack
from detector.serving.session import open_session
from detector.serving.torchserve import (
    OutlastedError,
    ProbeError,
    StartError,
    TorchServe,
    TorchServeRefusedError,
    TorchServeUnavailableError,
    VersionMissingError,
)
from detector.settings import DetectorSettings

pytestmark = pytest.mark.system

PHOTOGRAPH = Path(skimage.__file__).parent / "data" / "rocket.jpg"


@pytest.fixture(scope="module")
def settings(torchserve):
    return DetectorSettings(
        torchserve_url=torchserve.inference_url,
        torchserve_management_url=torchserve.management,
        model_store_dir=torchserve.model_store,
    )


@pytest.fixture(scope="module")
def client(settings):
    with TorchServe(settings) as opened:
        yield opened


@pytest.fixture(scope="module")
def served(client, untrained_artifact, torchserve):
    pack(untrained_artifact, torchserve.model_store)
    client.register(untrained_artifact)
    client.set_default(untrained_artifact.version)
    yield untrained_artifact
    client.unregister(untrained_artifact.version)


@pytest.fixture
def other(untrained_artifact, tmp_path):
    """An artifact of the same files but the probe, whose expected energies are off by one."""
    folder = tmp_path / "other"
    shutil.copytree(untrained_artifact.folder, folder)
    asked, expected = read_probe(folder / PROBE, untrained_artifact.manifest.contract)
    write_probe(folder / PROBE, asked, {**expected, "energy": expected["energy"] + 1})
    return seal(folder, load(folder).manifest)


def asked(px):
    return {"crops": np.zeros((1, px, px, 3), np.uint8), "pooling": np.ones((1, 1), np.float32)}


def curl(*arguments):
    done = subprocess.run(
        ["curl", "--silent", "--max-time", "30", "--write-out", "\n%{http_code}", *arguments],
        capture_output=True,
        check=True,
        text=True,
    )
    body, _, status = done.stdout.rpartition("\n")
    return int(status), json.loads(body)


def test_a_registered_release_is_ready_and_scores_as_its_probe_says(client, served):
    assert client.versions()[served.version]
    assert max(client.probe(served).values()) < 1e-4


def test_torchserve_scores_as_the_graph_does_in_process(client, served):
    crops = np.random.default_rng(0).integers(0, 256, (9, 64, 64, 3), dtype=np.uint8)
    pooling = np.repeat(np.eye(3, dtype=np.float32), 3, axis=1) / 3
    request = {"crops": crops, "pooling": pooling}
    remote, here = client.predict(served, request), open_session(served, threads=1).score(request)
    assert remote.keys() == here.keys()
    for name in here:
        np.testing.assert_allclose(remote[name], here[name], atol=1e-4, rtol=1e-5)


def test_registering_again_changes_nothing(client, served):
    client.register(served)
    assert client.versions()[served.version]


def test_curl_with_a_photograph_gets_a_verdict(torchserve, served):
    status, verdict = curl("-T", PHOTOGRAPH, f"{torchserve.inference_url}/predictions/forgewatch")
    assert status == 200
    assert verdict["release"] == served.digest
    assert (verdict["format"], verdict["width"], verdict["height"]) == ("JPEG", 640, 427)
    assert verdict["label"] in ("real", "fake", "unknown")
    assert "id" not in verdict


def test_curl_with_a_form_gets_a_verdict_or_is_told_how(torchserve, served):
    url = f"{torchserve.inference_url}/predictions/forgewatch"
    for name in ("file", "data", "body"):
        status, verdict = curl("-F", f"{name}=@{PHOTOGRAPH}", url)
        assert (status, verdict["width"]) == (200, 640)
    octets = ("-H", "content-type: application/octet-stream")
    assert curl("--data-binary", f"@{PHOTOGRAPH}", *octets, url)[0] == 200
    two = ("-F", f"a=@{PHOTOGRAPH}", "-F", f"b=@{PHOTOGRAPH}")
    status, said = curl(*two, url)
    assert status == 415
    assert "one file" in said["message"]


@pytest.mark.parametrize("content", [b"", b"no picture", PHOTOGRAPH.read_bytes()[:200]])
def test_curl_with_bad_media_gets_a_4xx_with_the_reason(torchserve, served, tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    url = f"{torchserve.inference_url}/predictions/forgewatch/{served.version}"
    status, said = curl("--data-binary", f"@{tmp_path / 'file'}", "-H", "content-type: image/jpeg", url)
    assert status == 415
    assert said["reason"]
    assert said["message"]


def test_wrong_tensors_are_refused_and_not_retried(client, served):
    with pytest.raises(TorchServeRefusedError, match="64, 64, 3"):
        client.predict(served, asked(32))


def test_more_crops_together_than_an_item_can_have_are_refused(client, served):
    """Their run would take gigabytes; with the bound off, `tests/detector/serving` shows that they run."""
    crops = np.zeros((300, 64, 64, 3), np.uint8)
    with pytest.raises(
        TorchServeRefusedError, match="300 crops are pooled together: an item has at most 256"
    ):
        client.predict(served, {"crops": crops, "pooling": np.full((1, 300), 1 / 300, np.float32)})
    assert client.probe(served)


def test_a_version_that_is_not_there_is_told_apart(client, served):
    with pytest.raises(VersionMissingError):
        client.predict(replace(served, digest="0" * 64), asked(64))
    client.unregister("000000000000")


def test_a_release_that_scores_otherwise_than_its_probe_is_refused(client, torchserve, other):
    pack(other, torchserve.model_store)
    client.register(other)
    try:
        with pytest.raises(ProbeError, match="energy differs by"):
            client.probe(other)
    finally:
        client.unregister(other.version)
    assert other.version not in client.versions()


def test_a_release_whose_worker_dies_is_refused_and_leaves_others(client, torchserve, served, other):
    (other.folder / MODEL).write_bytes(b"no graph at all")
    broken = seal(other.folder, other.manifest)
    pack(broken, torchserve.model_store)
    with pytest.raises(StartError, match="Failed to start"):
        client.register(broken)
    assert list(client.versions()) == [served.version]
    assert client.probe(served)


def test_a_graph_that_never_ends_for_a_request_is_stopped_and_its_worker_serves_on(
    client, torchserve, untrained_artifact, tmp_path
):
    shutil.copytree(untrained_artifact.folder, tmp_path / "endless")
    ENDLESS(tmp_path / "endless")
    endless = seal(tmp_path / "endless", untrained_artifact.manifest)
    pack(endless, torchserve.model_store)
    client.register(endless)
    try:
        white = {**asked(64), "crops": np.full((1, 64, 64, 3), 255, np.uint8)}
        with pytest.raises(OutlastedError, match="the graph did not end within 20 s"):
            client.predict(endless, white)
        assert client.probe(endless)
    finally:
        client.unregister(endless.version)


@pytest.mark.bar("S3")
def test_a_worker_that_is_killed_comes_back_by_itself(client, torchserve, served):
    workers = [
        child
        for child in psutil.Process(torchserve.process.pid).children()
        if child.status() != psutil.STATUS_ZOMBIE
        and any("model_service_worker" in part for part in child.cmdline())
    ]
    assert len(workers) == 1
    workers[0].kill()
    deadline = time.monotonic() + 180
    while True:
        try:
            assert client.probe(served)
            break
        except TorchServeUnavailableError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_no_server_is_a_passing_fault(settings, untrained_artifact):
    nowhere = settings.model_copy(
        update={"torchserve_url": "http://127.0.0.1:9", "torchserve_management_url": "http://127.0.0.1:9"}
    )
    with TorchServe(nowhere) as client:
        with pytest.raises(TorchServeUnavailableError):
            client.versions()
        with pytest.raises(TorchServeUnavailableError):
            client.predict(untrained_artifact, asked(64))


def test_connections_are_answered_while_a_release_is_registered(torchserve, settings, other):
    pack(other, torchserve.model_store)
    with ExitStack() as opened:
        asking = [
            opened.enter_context(httpx.Client(base_url=torchserve.inference_url, timeout=60))
            for _ in range(4)
        ]
        for each in asking:
            each.get("/ping")
        fresh = opened.enter_context(TorchServe(settings))
        registering = opened.enter_context(ThreadPoolExecutor(1)).submit(fresh.register, other)
        rounds = 0
        while not registering.done():
            for each in asking:
                each.get("/ping")
            rounds += 1
        registering.result()
        fresh.unregister(other.version)
    assert rounds > 10  # with two threads for all connections it is 1: it waits for the whole of it


@pytest.mark.bar("S1")
def test_control_a_version_taken_out_under_load_strands_requests(torchserve, client, served, other, bar):
    pack(other, torchserve.model_store)
    crops = np.zeros((30, 64, 64, 3), np.uint8)  # they take a while, so that others wait
    found, body = Counter[str](), encode({"crops": crops, "pooling": np.ones((1, 30), np.float32) / 30})

    def ask(asking):
        answered = 0
        with httpx.Client(base_url=torchserve.inference_url, timeout=15) as own:
            path = f"/predictions/forgewatch/{other.version}"
            headers = {"content-type": REQUEST_TYPE}
            while not found.keys() & {"stranded", "refused"}:
                try:
                    reply = own.post(path, content=body, headers=headers)
                except httpx.ReadTimeout:
                    found["stranded"] += 1
                    return
                found["answered" if reply.is_success else "refused"] += 1
                answered += reply.is_success
                if answered > 2:
                    asking.set()

    rounds = 0
    while not found["stranded"] and rounds < 10:  # none is where TorchServe's process took the last of them
        found.clear()
        rounds, asking = rounds + 1, threading.Event()
        client.register(other)
        with ThreadPoolExecutor(8) as clients:
            done = [clients.submit(ask, asking) for _ in range(8)]
            assert asking.wait(60)
            client.set_default(served.version)  # the naive order: the next is loaded, the last goes
            client.unregister(other.version)
            for each in done:
                each.result()
    print(rounds, found)
    bar.count(rounds, lost=found["stranded"])
    assert found["stranded"]

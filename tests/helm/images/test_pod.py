"""Detector, TorchServe, memory and deploy from their images, as in a cluster, beside a real broker."""

import json
import shutil
import time
from pathlib import Path

import httpx
import pytest
import skimage

from deploy.local.broker import start_broker
from deploy.local.processes import free_port
from updater.deploy_client import DeployClient
from updater.settings import UpdaterSettings

pytestmark = [pytest.mark.system, pytest.mark.slow]

PHOTOGRAPH = Path(skimage.__file__).parent / "data" / "rocket.jpg"
CACHE = Path(__file__).parents[3] / ".forgewatch" / "cache"
TO_JAVA = """
import psutil, signal, sys
(java,) = (one for one in psutil.process_iter() if one.name() == "java")
java.send_signal(signal.Signals[f"SIG{sys.argv[1]}"])
"""
ROOMS = ("detector", "memory", "deploy")


class Pod:
    def __init__(self, podman, worker, torchserve, bootstrap, media):
        self.ports = {room: free_port() for room in ROOMS}
        self.api, inference = free_port(), free_port()
        self.settings = {
            "FORGEWATCH_LOG_FORMAT": "json",
            "FORGEWATCH_INGEST_BOOTSTRAP_SERVERS": bootstrap,
            "FORGEWATCH_DETECTOR_TORCHSERVE_URL": f"http://127.0.0.1:{inference}",
            "FORGEWATCH_DETECTOR_DEPLOY_URL": f"http://127.0.0.1:{self.api}",
            "FORGEWATCH_DETECTOR_MODEL_THREADS": "1",
            "FORGEWATCH_DEPLOY_URL": f"http://127.0.0.1:{self.api}",
            "FORGEWATCH_DEPLOY_PORT": str(self.api),
            **{f"FORGEWATCH_{room.upper()}_METRICS_PORT": str(port) for room, port in self.ports.items()},
        }
        self.podman = podman
        options = [
            "--network=host",
            "--memory=2g",
            *(f"--env={name}={value}" for name, value in self.settings.items()),
        ]
        state = [f"--volume={podman.make_volume()}:/var/lib/forgewatch"]
        beside = [
            f"--volume={podman.make_volume()}:/var/lib/forgewatch",
            f"--volume={podman.make_volume()}:/run/forgewatch",
        ]
        self.containers = {
            "deploy": podman.start(
                *options, *state, f"--volume={media}:/media:ro", worker, "python3", "-m", "deploy"
            ),
            "torchserve": podman.start(*options, *beside, torchserve),
            "detector": podman.start(*options, *beside, worker),
        }
        self.cli("topics", "--partitions", "2")
        self.containers["memory"] = podman.start(*options, *state, worker, "python3", "-m", "memory")

    def cli(self, *arguments):
        return str(self.podman("exec", self.containers["deploy"], "forgewatch", *arguments))

    def answer(self, room, path):
        """What a room's probe answers, if it does."""
        try:
            return httpx.get(f"http://127.0.0.1:{self.ports[room]}/{path}", trust_env=False, timeout=10)
        except httpx.TransportError:
            return None

    def await_ready(self, room):
        """Wait until a room's process says that it does its work."""
        until = time.monotonic() + 180
        while (found := self.answer(room, "readyz")) is None or not found.is_success:
            assert time.monotonic() < until, (found and found.text, self.logs(room))
            time.sleep(0.2)

    def logs(self, name):
        """The end of what a container has said."""
        return str(self.podman("logs", "--tail=20", self.containers[name], check=False))


@pytest.fixture(scope="module")
def pod(podman, worker, torchserve_image, tmp_path_factory):
    media = tmp_path_factory.mktemp("media")
    shutil.copy(PHOTOGRAPH, media / "photo.jpg")
    (media / "hostile.jpg").write_bytes(b"\xff\xd8\xff\xe0" + b"hostile" * 100)
    for path in (media, *media.iterdir()):
        path.chmod(0o755)
    broker = start_broker(tmp_path_factory.mktemp("broker"), cache=CACHE)
    try:
        yield Pod(podman, worker, torchserve_image, broker.bootstrap, media)
    finally:
        podman.end()
        broker.stop()


@pytest.fixture(scope="module")
def release(pod, untrained_artifact, candidate_of):
    pod.await_ready("deploy")
    with DeployClient(UpdaterSettings(deploy_url=pod.settings["FORGEWATCH_DEPLOY_URL"])) as deploy:
        deploy.put(untrained_artifact)
        deploy.propose(candidate_of(untrained_artifact))
    pod.cli("approve", untrained_artifact.digest[:12], "--as", "tester")
    pod.await_ready("detector")
    return untrained_artifact.digest


def test_memory_and_deploy_are_ready(pod):
    pod.await_ready("deploy")
    pod.await_ready("memory")


def test_a_detector_without_a_release_lives_and_is_not_ready(pod):
    pod.await_ready("memory")
    lives, ready = pod.answer("detector", "livez"), pod.answer("detector", "readyz")
    assert lives is not None
    assert ready is not None
    assert (lives.status_code, ready.status_code) == (200, 503)


def test_a_photograph_gets_its_verdict_and_hostile_media_a_dead_letter(pod, release):
    sent = pod.cli("send", "/media/photo.jpg", "/media/hostile.jpg", "--json").splitlines()
    photograph, _ = (json.loads(line)["id"] for line in sent)
    found = []
    until = time.monotonic() + 180
    while not found:
        assert time.monotonic() < until, pod.logs("detector")
        found = [json.loads(line) for line in pod.cli("verdicts", "--json").splitlines()]
    (verdict,) = found
    assert (verdict["id"], verdict["release"]) == (photograph, release)
    metrics = pod.answer("detector", "metrics")
    assert metrics is not None
    assert "forgewatch_detector_dead_letters_total" in metrics.text


@pytest.mark.parametrize("name", ["detector", "torchserve", "memory", "deploy"])
def test_the_healthcheck_finds_each_process_live(pod, release, name):
    pod.podman("healthcheck", "run", pod.containers[name])  # fails unless its command ends with 0


@pytest.mark.parametrize("name", ["detector", "torchserve"])
def test_the_healthcheck_finds_a_process_that_is_stopped_not_live(pod, release, name):
    container = pod.containers[name]
    signal = {
        "detector": lambda which: pod.podman("kill", f"--signal={which}", container),
        # It is the container's first process's child that answers.
        "torchserve": lambda which: pod.podman("exec", container, "python3", "-c", TO_JAVA, which),
    }[name]
    signal("STOP")
    try:
        with pytest.raises(AssertionError):
            pod.podman("healthcheck", "run", container)
    finally:
        signal("CONT")


def test_each_process_ends_with_0_within_its_grace_when_told(pod, release):
    for name, container in pod.containers.items():
        begun = time.monotonic()
        pod.podman("stop", "--time=30", container)
        took_s = time.monotonic() - begun
        state = json.loads(pod.podman("inspect", "--format={{json .State}}", container))
        assert (name, state["ExitCode"], took_s < 25) == (name, 0, True), (state, pod.logs(name))

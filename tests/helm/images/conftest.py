"""The images, built from this tree by podman on a base that is there already: without one, the tests skip."""

import os
import re
import shutil
import subprocess
import uuid
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
BASE = os.environ.get("BASE", "localhost/forgewatch-base:bookworm")
TAG = "tests"
"""Of the images that are built here; those of a version stay as they are."""
ROOMS = ("ingest", "detector", "memory", "updater", "deploy")
REVISION = '{{index .Config.Labels "org.opencontainers.image.revision"}}'
LOCAL_CONF = ROOT / ".forgewatch/images/containers.conf"
HARDENED = (
    *("--read-only", "--read-only-tmpfs=false", "--tmpfs=/tmp:mode=1777", "--cap-drop=all"),
    "--security-opt=no-new-privileges",
)
IMPORT_ALL = """
import importlib, pkgutil
for room in ("ingest", "detector", "memory", "updater", "deploy"):
    for module in pkgutil.walk_packages(importlib.import_module(room).__path__, f"{room}."):
        if not module.name.endswith(("__main__", ".env")):  # programs
            try:
                importlib.import_module(module.name)
            except ModuleNotFoundError as error:
                print(error.name)
"""


@dataclass
class Podman:
    environment: dict[str, str]
    started: list[str] = field(default_factory=list)
    volumes: list[str] = field(default_factory=list)

    def __call__(self, *arguments, check=True, timeout_s=120):
        """What a podman command says on its standard output."""
        done = subprocess.run(
            ["podman", *arguments], env=self.environment, capture_output=True, text=True, timeout=timeout_s
        )
        assert not check or done.returncode == 0, done.stderr
        return done.stdout

    def run(self, *arguments, timeout_s=120):
        """Run a hardened container to its end; what it said."""
        return self("run", "--rm", "--pull=never", *HARDENED, *arguments, timeout_s=timeout_s)

    def missing(self, image, and_import="", timeout_s=120):
        """The packages that any of our modules imports, or and_import does, and that an image lacks."""
        snippet = IMPORT_ALL + (f"import {and_import}\n" if and_import else "")
        said = self.run(image, "python3", "-c", snippet, timeout_s=timeout_s)
        return {name.partition(".")[0] for name in said.split()}

    def start(self, *arguments):
        name = f"forgewatch-{uuid.uuid4().hex[:12]}"
        self.started.append(name)
        self("run", "--detach", "--pull=never", "--name", name, *HARDENED, *arguments)
        return name

    def make_volume(self):
        name = f"forgewatch-{uuid.uuid4().hex[:12]}"
        self("volume", "create", name)
        self.volumes.append(name)
        return name

    def end(self):
        for name in reversed(self.started):
            self("rm", "--force", "--volumes", "--time=1", name, check=False)
        for name in self.volumes:
            self("volume", "rm", "--force", name, check=False)
        self.started.clear()
        self.volumes.clear()


@pytest.fixture(scope="session")
def podman():
    if shutil.which("podman") is None:
        pytest.skip("podman is not installed")
    environment = dict(os.environ)
    if LOCAL_CONF.is_file():
        environment.setdefault("CONTAINERS_CONF", str(LOCAL_CONF))
    opened = Podman(environment)
    if subprocess.run(["podman", "image", "exists", BASE], env=environment, check=False).returncode:
        pytest.skip(f"there is no image {BASE}: helm/images/debian_base.sh makes one without any registry")
    trial = ["podman", "run", "--rm", "--pull=never", "--network=none", BASE, "true"]
    done = subprocess.run(trial, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"podman runs no container here: {done.stderr.strip()}; see helm/images/debian_base.sh")
    yield opened
    opened.end()


def built(podman, target):
    """The name of an image made from this tree; what has not changed is not built anew."""
    environment = podman.environment | {"BASE": BASE, "BUILDER": "podman", "TAG": TAG}
    done = subprocess.run(
        [ROOT / "helm/images/build.sh", target], env=environment, capture_output=True, text=True, timeout=3600
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return f"localhost/forgewatch/{target}:{TAG}"


@pytest.fixture(scope="session")
def worker(podman):
    """The image of the light processes."""
    return built(podman, "worker")


@pytest.fixture(scope="session")
def torchserve_image(podman):
    return built(podman, "torchserve")


@pytest.fixture(scope="session")
def updater_image(podman):
    """The updater's image under the version's tag. It is several GB of CUDA, so no test builds it."""
    version = re.search('^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    name = f"localhost/forgewatch/updater:{version[1]}"
    exists = ["podman", "image", "exists", name]
    if subprocess.run(exists, env=podman.environment, check=False).returncode:
        pytest.skip(f"there is no image {name}: helm/images/build.sh updater makes it")
    revision = podman("image", "inspect", "--format", REVISION, name).strip()
    changed = ["git", "diff", "--quiet", revision, "--", *ROOMS, "helm/images"]
    if subprocess.run(changed, cwd=ROOT, capture_output=True, check=False).returncode:
        pytest.skip(f"{name} is of other code than this: helm/images/build.sh updater makes it anew")
    return name

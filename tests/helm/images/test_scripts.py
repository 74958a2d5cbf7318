import ast
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.settings import DeploySettings
from detector.settings import DetectorSettings
from ingest.process.health import Heartbeat, serve_health
from memory.settings import MemorySettings
from updater.settings import UpdaterSettings

ROOT = Path(__file__).parents[3]
Runs = Callable[..., Path]


@pytest.fixture(scope="module")
def healthcheck() -> Any:
    spec = importlib.util.spec_from_file_location("healthcheck", ROOT / "helm" / "images" / "healthcheck.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    """Makes a folder like /proc in which these commands run, the first as process 1."""

    def make(*commands: tuple[str, ...]) -> Path:
        for number, words in enumerate(commands, start=1):
            (tmp_path / str(number)).mkdir()
            (tmp_path / str(number) / "cmdline").write_bytes(
                b"".join(word.encode() + b"\0" for word in words)
            )
        return tmp_path

    return make


def test_it_knows_the_defaults_of_the_settings(healthcheck: Any) -> None:
    rooms = {
        "detector": DetectorSettings,
        "memory": MemorySettings,
        "updater": UpdaterSettings,
        "deploy": DeploySettings,
    }
    defaults = {room: kind.model_fields["metrics_port"].default for room, kind in rooms.items()}
    assert defaults == healthcheck.METRICS_PORTS
    assert DetectorSettings.model_fields["torchserve_url"].default == healthcheck.TORCHSERVE_URL


def test_it_finds_the_room_and_not_its_decoding_children(healthcheck: Any, runs: Runs) -> None:
    processes = runs(
        ("/pause",), ("python3", "-E", "-s", "-m", "ingest"), ("python3", "-u", "-m", "memory"), ("sh",)
    )
    assert healthcheck.module_run(processes) == "memory"


def test_a_container_without_any_process_of_ours_is_not_live(
    healthcheck: Any, runs: Runs, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    processes = runs(("sleep", "1"))
    found = healthcheck.module_run(processes)
    monkeypatch.setattr(healthcheck, "module_run", lambda: found)
    assert healthcheck.main() == 1
    assert "no process of detector, memory" in capsys.readouterr().out


@pytest.mark.parametrize(("max_age_s", "code"), [(60.0, 0), (-1.0, 1)])
def test_it_asks_whether_the_loop_goes_on(
    healthcheck: Any, monkeypatch: pytest.MonkeyPatch, max_age_s: float, code: int
) -> None:
    monkeypatch.setattr(healthcheck, "module_run", lambda: "memory")
    with serve_health("127.0.0.1", 0, Heartbeat(max_age_s)) as url:
        monkeypatch.setenv("FORGEWATCH_METRICS_HOST", "0.0.0.0")
        monkeypatch.setenv("FORGEWATCH_MEMORY_METRICS_PORT", url.rpartition(":")[2])
        assert healthcheck.main() == code


def test_torchserve_is_asked_where_the_detector_asks_it(
    healthcheck: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORGEWATCH_DETECTOR_TORCHSERVE_URL", "http://127.0.0.1:18080")
    assert healthcheck.address("detector.serving.torchserve_launch") == ("127.0.0.1", 18080, "/ping")


pytest.importorskip("ts", reason="TorchServe is not installed")

STAND_IN = ROOT / "helm" / "images" / "torchserve"
SAID = (
    "import sys, ts.model_service_worker, detector.handler;"
    "print(*(module.__file__ for name, module in sys.modules.items()"
    " if name.partition('.')[0] in ('ts', 'torch') and module.__file__), sep='\\n')"
)


def names_of_torch(source: str) -> set[str]:
    """What a source text asks of torch, as torch.NAME or by importing from it."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Name(id="torch"), attr=name):
                found.add(name)
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] == "torch":
                found |= {alias.name for alias in node.names}
    return found


@pytest.fixture(scope="module")
def loaded() -> list[Path]:
    """The files of TorchServe and of torch that a worker with Forgewatch's handler loads."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(STAND_IN), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-c", SAID], env=environment, capture_output=True, text=True, check=True
    )
    return [Path(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_a_worker_loads_the_stand_in_and_asks_it_for_nothing_else_before_it_pickles(
    loaded: list[Path],
) -> None:
    assert [path for path in loaded if "torch" in path.parts] == [STAND_IN / "torch" / "__init__.py"]
    asked = {path.name: names_of_torch(path.read_text()) for path in loaded if "ts" in path.parts}
    assert {name: names for name, names in asked.items() if names} == {
        "otf_message_handler.py": {"Tensor", "save"}  # it saves what is a Tensor, and nothing is
    }


@pytest.mark.slow
def test_replies_of_bytes_pass_and_no_other_kind_reaches_a_pickle() -> None:
    script = (
        "import sys; from ts.protocol.otf_message_handler import create_predict_response as respond\n"
        "for reply in (b'verdict', object()):\n"
        "    sys.stdout.buffer.write(respond([reply], {0: 'id'}, 'OK', 200))"
    )
    environment = os.environ | {"PYTHONPATH": str(STAND_IN)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, check=True)
    assert b"verdict" in done.stdout
    assert b"Unsupported model output data type." in done.stdout


def test_a_name_that_is_asked_for_would_be_seen() -> None:
    assert names_of_torch("import torch\nfrom torch.nn import Module\ntorch.load('x')") == {"Module", "load"}

import importlib.util
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
    assert healthcheck.address("detector.serving.torchserve_container") == ("127.0.0.1", 18080, "/ping")

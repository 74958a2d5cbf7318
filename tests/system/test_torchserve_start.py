import os
import stat
from pathlib import Path

import httpx
import psutil
import pytest

from deploy.local.processes import PortTakenError, ProcessDiedError, alive
from deploy.local.torchserve import TorchServe, answers, start_torchserve
from detector.serving import torchserve_launch

pytestmark = pytest.mark.system


def ask(server: TorchServe, path: str) -> httpx.Response:
    transport = httpx.HTTPTransport(uds=server.management.removeprefix("unix:"))
    with httpx.Client(transport=transport, base_url="http://torchserve") as client:
        return client.get(path)


def test_an_empty_server_answers_and_has_no_model(torchserve: TorchServe) -> None:
    assert httpx.get(f"{torchserve.inference_url}/ping").json() == {"status": "Healthy"}
    assert ask(torchserve, "/models").is_success


def test_management_listens_nowhere_but_in_a_folder_of_this_user(torchserve: TorchServe) -> None:
    assert stat.S_IMODE(torchserve.sockets.stat().st_mode) == 0o700
    for connection in psutil.Process(torchserve.process.pid).net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN:
            assert connection.laddr.ip.removeprefix("::ffff:") == "127.0.0.1"
    assert httpx.get(f"{torchserve.inference_url}/models").status_code != 200


def test_two_servers_do_not_meet_and_stopping_one_leaves_the_other(
    torchserve: TorchServe, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    second = start_torchserve(tmp_path)
    assert second.port != torchserve.port
    second.stop()
    assert not alive(second.process)
    assert not second.sockets.exists()
    assert answers(torchserve.inference_url, torchserve.management)
    assert capfd.readouterr() == ("", "")


def test_a_folder_too_deep_for_a_socket_is_no_hindrance(tmp_path: Path) -> None:
    deep = start_torchserve(tmp_path / ("deep" * 25))
    try:
        assert len(os.fsencode(deep.sockets)) < 90
        assert ask(deep, "/models").is_success
    finally:
        deep.stop()
    assert not deep.sockets.exists()


def test_a_port_that_is_taken_is_told_before_anything_starts(torchserve: TorchServe, tmp_path: Path) -> None:
    with pytest.raises(PortTakenError, match=rf"port {torchserve.port} "):
        start_torchserve(tmp_path / "torchserve", torchserve.port)
    assert not (tmp_path / "torchserve").exists()


def test_a_server_that_dies_is_told_with_its_own_words_and_leaves_no_socket(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torchserve_launch, "_PROPERTIES", "inference_address=http://nowhere:many\n")
    with pytest.raises(ProcessDiedError, match=r"(?s)torchserve ended.*http://nowhere:many"):
        start_torchserve(tmp_path)
    assert not (tmp_path / "tmp").exists()

import os
import stat
from pathlib import Path

import pytest

from deploy.local.sockets import socket_folder

SOCKETS = ("supervisor.sock.4194304", "management.sock", "metrics.sock", ".ts.sock.99999")


@pytest.mark.parametrize("longest_bytes", [106, 107, 108, 109])
def test_every_socket_has_a_path_that_the_kernel_takes(
    tmp_path_factory: pytest.TempPathFactory, longest_bytes: int
) -> None:
    base = tmp_path_factory.mktemp("s")  # short: the length is made below
    # 107 bytes and a final zero byte fill the kernel's 108; one byte more binds nowhere.
    room = longest_bytes - len(os.fsencode(base)) - len("/") - len("/tmp/supervisor.sock.4194304")
    folder = base / ("d" * room)
    folder.mkdir()
    sockets = socket_folder(folder)
    try:
        assert all(len(os.fsencode(sockets / name)) <= 107 for name in SOCKETS)
        assert (sockets == folder / "tmp") == (longest_bytes <= 107)
        assert stat.S_IMODE(sockets.stat().st_mode) == 0o700
    finally:
        sockets.rmdir()


def test_the_sockets_of_a_server_that_was_killed_are_removed(tmp_path: Path) -> None:
    (socket_folder(tmp_path) / "management.sock").touch()
    assert list(socket_folder(tmp_path).iterdir()) == []

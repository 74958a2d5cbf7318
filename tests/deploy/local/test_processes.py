import os
import signal
import socket
import stat
import subprocess
import sys
from dataclasses import replace

import psutil
import pytest

from deploy.local.processes import (
    Daemon,
    PortTakenError,
    ProcessDiedError,
    ProcessNotReadyError,
    alive,
    claim_port,
    free_port,
    last_lines,
    port_is_free,
    socket_folder,
    start,
    stop,
    wait_until,
)

SLEEP = "import time; print('up', flush=True); time.sleep(600)"
DEAF = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); " + SLEEP
PARENT = (
    "import subprocess, sys, time; child = subprocess.Popen([sys.executable, '-c', {code!r}]);"
    "print(child.pid, flush=True); time.sleep(600)"
)


@pytest.fixture
def launch(tmp_path):
    started = []

    def run(code, name="child"):
        child = start(
            name,
            [sys.executable, "-c", code],
            log=tmp_path / f"{name}.log",
            environment=dict(os.environ),
            folder=tmp_path,
        )
        started.append(child)
        return child

    yield run
    for child in reversed(started):
        stop(child, timeout_s=1)


def said(child):
    return bool(child.log.read_bytes().endswith(b"\n"))


def test_a_child_writes_to_its_log_and_not_to_the_terminal(launch, capfd):
    child = launch("import sys; print('out'); print('err', file=sys.stderr); import time; time.sleep(600)")
    wait_until(child, lambda: "err" in child.log.read_text(), 10)
    assert capfd.readouterr() == ("", "")


def test_a_stopped_child_is_gone_and_stopping_it_again_does_nothing(launch):
    child = launch(SLEEP)
    wait_until(child, lambda: said(child), 10)
    stop(child)
    assert not alive(child)
    stop(child)


def test_a_child_that_ignores_sigterm_is_killed(launch):
    child = launch(DEAF)
    wait_until(child, lambda: said(child), 10)
    stop(child, timeout_s=0.3)
    assert not alive(child)
    assert child.handle is not None
    assert child.handle.returncode == -signal.SIGKILL


@pytest.mark.parametrize("killed_first", [False, True])
def test_grandchildren_end_with_the_child_even_where_it_died_before(launch, killed_first):
    child = launch(PARENT.format(code=DEAF))
    wait_until(child, lambda: child.log.read_text().count("\n") == 2, 10)
    grandchild = psutil.Process(next(int(line) for line in child.log.read_text().split() if line.isdigit()))
    if killed_first:
        assert child.handle is not None
        child.handle.kill()
        child.handle.wait(10)
    stop(child, timeout_s=0.3)
    # Where the container has no init that reaps, an ended orphan stays as a zombie.
    assert not grandchild.is_running() or grandchild.status() == psutil.STATUS_ZOMBIE


def test_a_stranger_that_got_the_childs_id_is_not_touched(launch):
    stranger = launch(SLEEP)
    remembered = Daemon("child", stranger.pid, stranger.created_s - 60, stranger.log)
    assert not alive(remembered)
    stop(remembered, timeout_s=0.3)
    assert alive(stranger)
    # The control: the same call with the true start time does end it.
    stop(replace(remembered, created_s=stranger.created_s), timeout_s=5)
    assert not alive(stranger)


def test_a_child_of_an_earlier_run_is_stopped_by_its_record_alone(launch):
    child = launch(SLEEP)
    stop(replace(child, handle=None), timeout_s=5)
    assert not alive(child)


def test_waiting_for_a_child_that_dies_raises_with_its_last_words(launch):
    child = launch("raise SystemExit('the port is taken')", name="broker")
    with pytest.raises(ProcessDiedError, match=r"(?s)broker ended with exit status 1.*the port is taken"):
        wait_until(child, lambda: False, 10)


def test_waiting_for_a_child_that_never_is_ready_raises_in_time(launch):
    with pytest.raises(ProcessNotReadyError, match=r"child was not ready within 0 s"):
        wait_until(launch(SLEEP), lambda: False, 0.2)


def test_a_command_that_does_not_exist_raises_at_once(tmp_path):
    with pytest.raises(FileNotFoundError):
        start("x", [tmp_path / "nothing"], log=tmp_path / "log", environment={}, folder=tmp_path)


def test_last_lines_are_the_last_ones_and_name_the_log(tmp_path):
    log = tmp_path / "a.log"
    assert last_lines(log) == f"Its log is empty: {log}"
    log.write_text("".join(f"line {number}\n" for number in range(100)))
    assert last_lines(log, 2) == f"The end of {log}:\n  line 98\n  line 99"


def test_a_port_that_someone_listens_on_is_not_free():
    with socket.create_server(("127.0.0.1", 0)) as server:
        assert not port_is_free(server.getsockname()[1])
        with pytest.raises(PortTakenError):
            claim_port(server.getsockname()[1])
    assert port_is_free(free_port())
    assert claim_port(server_port := free_port()) == server_port


def test_an_ended_child_is_dead_before_anyone_reaps_it(launch):
    child = replace(launch("pass"), handle=None)
    wait_until(launch(SLEEP, "other"), lambda: not alive(child), 10)
    assert psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE


def test_a_ctrl_c_in_the_terminal_does_not_reach_a_child(launch):
    child = launch(SLEEP)
    assert os.getsid(child.pid) == child.pid != os.getsid(0)
    assert (
        subprocess.run(
            ["ps", "-o", "tty=", "-p", str(child.pid)], capture_output=True, text=True
        ).stdout.strip()
        == "?"
    )


SOCKETS = ("supervisor.sock.4194304", "management.sock", "metrics.sock", ".ts.sock.99999")


@pytest.mark.parametrize("longest_bytes", [106, 107, 108, 109])
def test_every_socket_has_a_path_that_the_kernel_takes(tmp_path_factory, longest_bytes):
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


def test_the_sockets_of_a_server_that_was_killed_are_removed(tmp_path):
    (socket_folder(tmp_path) / "management.sock").touch()
    assert list(socket_folder(tmp_path).iterdir()) == []

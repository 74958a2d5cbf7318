"""A real supervisord, and small processes that it keeps alive."""

import os
import signal
import stat
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import psutil
import pytest

from deploy.local.processes import ProcessDiedError, StackError, alive, session, socket_folder, start, stop
from deploy.local.restarts import ACTIVITY_LOG, exits
from deploy.local.supervisor import SOCKET, start_supervisor

pytestmark = pytest.mark.slow

SLEEP = "import time; time.sleep(600)"
# Lives only where the file is there; ends with the status that the file says, once it is gone.
UNTIL = (
    "import pathlib, sys, time\n"
    "go = pathlib.Path('go')\n"
    "while go.read_text() == '': time.sleep(0.02)\n"
    "sys.exit(int(go.read_text()))"
)


@pytest.fixture
def supervisor(tmp_path):
    folder, sockets = tmp_path / "a folder, 100% odd", socket_folder(tmp_path)
    environment = {**os.environ, "FORGEWATCH_OF_ALL": "quoted \"and\" % and 'more'"}
    running = start_supervisor(folder, sockets, environment, lambda child: None)
    yield running
    running.stop()


@pytest.fixture
def launch(supervisor, tmp_path):
    def run(code, name="child", **options):
        (script := tmp_path / f"{name}.py").write_text(code)
        command = [sys.executable, script]
        log = tmp_path / f"{name}.log"
        return supervisor.launch(name, command, log=log, folder=tmp_path, **options).pid

    return run


def awaited(supervisor, holds):
    """The state of the first process, once it holds."""
    until = time.monotonic() + 120
    while not holds(kept := supervisor.states()[0]):
        assert time.monotonic() < until, kept
        time.sleep(0.02)
    return kept


def test_a_killed_process_is_started_again_and_it_is_told_why(supervisor, launch):
    pid = launch(SLEEP)
    (before,) = supervisor.states()
    assert (before.runs, before.pid, before.restarts, before.why) == (True, pid, 0, None)
    os.kill(pid, signal.SIGKILL)
    after = awaited(supervisor, lambda kept: kept.runs and kept.pid not in (0, pid))
    assert (after.restarts, after.why) == (1, "terminated by SIGKILL")
    assert after.last_end is not None
    assert before.since <= after.last_end <= after.since


def test_a_process_that_ends_again_and_again_is_started_after_longer_pauses(supervisor, launch, tmp_path):
    launch(
        "import time; open('starts', 'a').write(f'{time.time()}\\n'); time.sleep(0.3); raise SystemExit(3)"
    )
    waits = awaited(supervisor, lambda kept: kept.restarts >= 3 and kept.state == "waits")
    assert waits.why == "exit status 3"
    assert not waits.given_up
    at = [float(line) for line in (tmp_path / "starts").read_text().split()]
    assert at[3] - at[2] > at[1] - at[0] + 0.5


def test_a_wrong_setting_is_not_tried_again(supervisor, launch, tmp_path):
    (tmp_path / "go").touch()
    launch(UNTIL)
    (tmp_path / "go").write_text("2")
    stopped = awaited(supervisor, lambda kept: kept.given_up)
    assert (stopped.state, stopped.restarts, stopped.pid) == ("stopped", 0, 0)
    assert stopped.why == "exit status 2: a setting is wrong; its log names it"


def test_another_status_at_once_is_tried_again(supervisor, launch, tmp_path):
    """The control of the test above: it is the status 2 that stops, not the end."""
    (tmp_path / "go").touch()
    launch(UNTIL)
    (tmp_path / "go").write_text("1")
    awaited(supervisor, lambda kept: kept.restarts)
    (tmp_path / "go").write_text("")
    assert awaited(supervisor, lambda kept: kept.runs).why == "exit status 1"


def test_the_environment_is_supervisords_own_or_the_given_one_alone(supervisor, launch, tmp_path):
    own, given = launch(SLEEP, "own"), launch(SLEEP, "given", environment={"A": "b 'c' \"d\" 5%"})
    for pid, path in ((own, tmp_path / "own.py"), (given, tmp_path / "given.py")):  # after `run` and `env`
        awaited(supervisor, lambda _, pid=pid, path=path: psutil.Process(pid).cmdline()[1:] == [str(path)])
    assert psutil.Process(own).environ()["FORGEWATCH_OF_ALL"] == "quoted \"and\" % and 'more'"
    environment = psutil.Process(given).environ()
    assert environment.pop("LC_CTYPE", None) in (None, "C.UTF-8")  # python's own
    assert environment == {"A": "b 'c' \"d\" 5%"}


def test_a_process_is_started_anew_by_another_command_and_keeps_its_place(supervisor, launch, tmp_path):
    first, second = launch(SLEEP, "z"), launch(SLEEP, "a")
    command = ["sleep", "600"]
    again = supervisor.launch("z", command, log=tmp_path / "z.log", folder=tmp_path).pid
    assert not psutil.pid_exists(first)
    # It is told of once it was forked, and bears its own name once it is executed.
    awaited(supervisor, lambda kept: psutil.Process(again).cmdline() == command)
    assert [(kept.name, kept.pid) for kept in supervisor.states()] == [("z", again), ("a", second)]
    assert supervisor.states()[0].last_end is None


def test_what_cannot_be_started_is_told(supervisor, tmp_path):
    with pytest.raises(ProcessDiedError, match="x ended as soon as it was started"):
        supervisor.launch("x", [tmp_path / "nothing"], log=tmp_path / "log", folder=tmp_path)
    with pytest.raises(StackError, match=r"a #b: supervisord would read no further"):
        supervisor.launch("y", ["true"], log=tmp_path / "a #b", folder=tmp_path)


def test_nobody_else_can_ask_and_nothing_listens_on_a_port(supervisor):
    assert stat.S_IMODE(supervisor.sockets.stat().st_mode) == 0o700
    assert stat.S_IMODE((supervisor.sockets / SOCKET).stat().st_mode) == 0o700
    assert psutil.Process(supervisor.process.pid).net_connections("inet") == []


def test_processes_stop_in_reverse_order_and_before_supervisord(supervisor, launch, tmp_path):
    code = (
        "import signal, sys, time\n"
        "def end(*_):\n"
        "    with open('order', 'a') as file: file.write({name!r})\n"
        "    sys.exit()\n"
        "signal.signal(signal.SIGTERM, end); open({name!r}, 'w').close(); time.sleep(600)"
    )
    for name in "bac":
        launch(code.format(name=name), name)
    while not all((tmp_path / name).exists() for name in "abc"):
        time.sleep(0.02)
    supervisor.stop()
    assert (tmp_path / "order").read_text() == "cab"
    assert not alive(supervisor.process)


# Does not end when told to, and has a child of that kind with a session of its own.
DEAF = (
    "import signal, subprocess, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "if not sys.argv[1:]: subprocess.Popen([sys.executable, *sys.argv, 'again'], start_new_session=True)\n"
    "print('up', flush=True); time.sleep(600)"
)


@pytest.mark.parametrize("by_itself", [True, False])
def test_what_outlives_a_killed_supervisord_ends_or_is_ended(supervisor, launch, tmp_path, by_itself):
    meek = psutil.Process(launch(SLEEP))
    launch(DEAF, "deaf")
    awaited(supervisor, lambda _: (tmp_path / "deaf.log").read_text().count("up") == 2)
    all_of_it = supervisor.processes()
    assert len(all_of_it) == 5  # with its listener
    victims = [supervisor.process.pid]
    if not by_itself:
        victims += [each.pid for each in all_of_it if "listen" in each.cmdline()]
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    assert supervisor.process.handle is not None
    supervisor.process.handle.wait()
    _, alive = psutil.wait_procs(all_of_it, timeout=60 if by_itself else 2)
    assert len(alive) == (0 if by_itself else 2)
    assert not meek.is_running() or meek.status() == psutil.STATUS_ZOMBIE
    with pytest.raises(StackError, match="supervisord does not answer"):
        supervisor.states()
    supervisor.stop()
    assert psutil.wait_procs(all_of_it, timeout=10)[1] == []


@pytest.fixture
def small_disk(tmp_path):
    mount = ["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", tmp_path]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("only root may mount a file system")
    yield tmp_path
    subprocess.run(["umount", "--lazy", tmp_path], check=True)


def sleeps(pid):
    return "nanosleep" in Path(f"/proc/{pid}/wchan").read_text()


def test_what_ends_on_a_full_disk_waits_comes_back_with_the_space_and_says_why(
    small_disk, supervisor, launch
):
    pid = launch(SLEEP)
    while True:
        try:
            with (small_disk / "fill").open("ab") as file:
                file.write(bytes(2**20))
        except OSError:
            break
    for _ in range(3):  # each end is a line of a log that cannot be written
        os.kill(pid, signal.SIGKILL)
        waits = awaited(
            supervisor,
            lambda kept, pid=pid: kept.state == "waits" and kept.pid not in (0, pid) and sleeps(kept.pid),
        )
        assert waits.why is not None
        assert waits.why.startswith("the disk is full: 0 MiB are free at ")
        pid = waits.pid
    (small_disk / "fill").unlink()
    back = awaited(supervisor, lambda kept: kept.runs and "was full" in (kept.why or ""))
    assert (back.pid, back.restarts) == (pid, 3)
    assert psutil.Process(pid).cmdline() == [sys.executable, str(small_disk / "child.py")]


def test_a_stranger_is_in_no_session_of_ours(supervisor, tmp_path):
    """The control of the test above."""
    stranger = start(
        "stranger", [sys.executable, "-c", SLEEP], log=tmp_path / "log", environment={}, folder=tmp_path
    )
    assert stranger.pid not in {process.pid for process in session(supervisor.process)}
    supervisor.stop()
    assert alive(stranger)
    stop(stranger)


def test_the_activity_of_an_earlier_supervisord_is_not_told(tmp_path):
    log = tmp_path / ACTIVITY_LOG
    log.write_text(
        "2026-01-01 10:00:00,000 INFO supervisord started with pid 1\n"
        "2026-01-01 10:00:01,000 WARN exited: memory (exit status 1; not expected)\n"
        "2026-01-01 11:00:00,000 INFO supervisord started with pid 2\n"
        "2026-01-01 11:00:01,000 INFO stopped: memory (exit status 0)\n"
        "2026-01-01 11:00:02,000 WARN exited: broker (terminated by SIGSEGV (core dumped); not expected)\n"
        "2026-01-01 11:00:03,000 INFO exited: updater (exit status 2; expected)\n"
    )
    found = [(end.name, end.why) for end in exits(log.read_text())]
    assert found == [("broker", "terminated by SIGSEGV (core dumped)"), ("updater", "exit status 2")]
    assert exits(log.read_text())[0].at == datetime(2026, 1, 1, 11, 0, 2).astimezone()

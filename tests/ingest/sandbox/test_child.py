import os
import subprocess
import sys
import threading
import time
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from media import photo, slow_jpeg

from ingest.records import CropPlan, MediaPlan
from ingest.sandbox import child as child_module
from ingest.sandbox import sandbox as sandbox_module
from ingest.sandbox.child import used_s
from ingest.sandbox.decode import DecodeError
from ingest.sandbox.forks import command
from ingest.sandbox.sandbox import Sandbox, SandboxUnavailableError, wait_decoded
from ingest.settings import IngestSettings

pytestmark = pytest.mark.slow

PLAN = MediaPlan(crops=CropPlan(patches=4))
ENVIRONMENT = {
    *("LANG", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
    *("MALLOC_ARENA_MAX", "MALLOC_MMAP_THRESHOLD_"),
}


def children():
    """The decoding children of this process's sandboxes, and the processes that forked them."""
    return {child for child in psutil.Process().children(recursive=True) if child.status() != "zombie"}


def test_a_child_imports_nothing_from_the_folder_that_its_parent_works_in(monkeypatch, tmp_path):
    for name in ("ingest", "json", "PIL"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('a module of the working folder')")
    monkeypatch.chdir(tmp_path)
    with Sandbox(IngestSettings()) as box:
        assert len(box.submit(photo(), PLAN).result(60).crops) == 4
    # The same command in that folder: what keeps a child from it is the folder that it is started in.
    alone = subprocess.run(command(), capture_output=True, text=True, check=False)
    assert "a module of the working folder" in alone.stderr


def test_children_hold_nothing_of_the_parent(monkeypatch, tmp_path, one_child):
    monkeypatch.setenv("FORGEWATCH_INGEST_SASL_PASSWORD", "secret")
    with (tmp_path / "open").open("w") as held, one_child() as (_, child):
        os.set_inheritable(held.fileno(), True)
        assert set(child.environ()) == ENVIRONMENT
        assert child.num_fds() == 3
        assert os.getsid(child.pid) == os.getpgid(child.pid) == child.pid


def test_limits_stand_before_the_first_item_and_are_set_from_outside(monkeypatch, one_child):
    # A stand-in that only greets: whatever limits it has were not set by itself.
    greets = "import socket; from ingest.sandbox import forks, wire\n"
    greets += "def run(s): wire.send_greeting(s, None); wire.receive_item(s)\n"
    greets += "forks.serve(socket.socket(fileno=0), run)"
    monkeypatch.setattr("ingest.sandbox.forks.command", lambda: [sys.executable, "-c", greets])
    with one_child() as (_, child):
        limits = Path(f"/proc/{child.pid}/limits").read_text()
        for line in (
            "Max file size             0                    0",
            "Max core file size        0                    0",
            "Max data size             704643072            704643072",
            "Max address space         1476395008           1476395008",
            "Max open files            3                    3",
        ):
            assert line in limits


def test_a_child_is_confined_before_the_first_item(one_child):
    with one_child() as (_, child):
        status = Path(f"/proc/{child.pid}/status").read_text()
        assert "Seccomp:\t2" in status
        assert "NoNewPrivs:\t1" in status
        assert Path(f"/proc/{child.pid}/oom_score_adj").read_text() == "1000\n"


def test_the_process_that_forks_is_confined_and_has_one_thread(one_child):
    with one_child() as (_, child):
        forks = child.parent()
        status = Path(f"/proc/{forks.pid}/status").read_text()
        assert "Seccomp:\t2" in status
        assert "NoNewPrivs:\t1" in status
        assert forks.num_threads() == 1  # of a fork, only the thread that forks goes on
        assert set(forks.environ()) == ENVIRONMENT


def test_children_whose_forking_process_is_killed_cost_no_item(one_child):
    with one_child() as (sandbox, child):
        forks = child.parent()
        forks.kill()
        for _ in range(2):
            assert len(sandbox.submit(photo(), PLAN).result(60).crops) == 4


def test_the_process_that_forks_is_replaced_after_so_many_crashes(monkeypatch, one_child):
    monkeypatch.setattr("ingest.sandbox.forks._MOST_CRASHES", 2)
    with one_child() as (sandbox, child):
        first = child.parent()
        assert first is not None
        for _ in range(2):
            sandbox._forks.count_crash()
        child.kill()
        assert len(sandbox.submit(photo(), PLAN).result(60).crops) == 4
        assert first in psutil.wait_procs([first], 60)[0]


def test_a_child_is_replaced_after_so_many_items(monkeypatch, one_child):
    monkeypatch.setattr(sandbox_module, "_MOST_ITEMS_A_CHILD", 3)
    with one_child() as (sandbox, first):
        for _ in range(3):
            assert len(sandbox.submit(photo(), PLAN).result(60).crops) == 4
        assert first in psutil.wait_procs([first], 60)[0]
        assert len(sandbox.submit(photo(), PLAN).result(60).crops) == 4


def test_children_die_with_a_parent_that_is_killed():
    program = (
        "import psutil, sys\n"
        "from ingest.sandbox.sandbox import Sandbox\n"
        "from ingest.settings import IngestSettings\n"
        "with Sandbox(IngestSettings()):\n"
        "    print(*(one.pid for one in psutil.Process().children(recursive=True)), flush=True)\n"
        "    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout
        orphans = [psutil.Process(int(pid)) for pid in parent.stdout.readline().split()]
        assert len(orphans) == 2
        parent.kill()
        parent.wait()
        _, alive = psutil.wait_procs(orphans, 10)
    # Nobody may be there to reap an orphan.
    assert all(orphan.status() == "zombie" for orphan in alive)


def test_a_closed_sandbox_leaves_no_process():
    before = children()
    with Sandbox(IngestSettings(decode_processes=2)):
        assert len(children() - before) == 3
    assert children() == before


def test_it_needs_no_capability():
    opens = (
        "import sys\n"
        "from ingest.records import MediaPlan\n"
        "from ingest.sandbox.sandbox import Sandbox\n"
        "from ingest.settings import IngestSettings\n"
        "assert 'CapEff:\\t0000000000000000' in open('/proc/self/status').read()\n"
        "with Sandbox(IngestSettings()) as sandbox:\n"
        "    print(len(sandbox.submit(sys.stdin.buffer.read(), MediaPlan()).result(60).crops))\n"
    )
    # 24 is PR_CAPBSET_DROP: what is not in the bounding set is gone after the next exec, for root too.
    drops = (
        "import ctypes, os, sys\n"
        "libc = ctypes.CDLL(None)\n"
        "for capability in range(64): libc.prctl(24, capability, 0, 0, 0)\n"
        "os.execv(sys.executable, [sys.executable, '-c', sys.argv[1]])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", drops, opens], input=photo(), capture_output=True, check=True, timeout=180
    )
    assert done.stdout == b"4\n"


# An item is to blame for the processor time that it takes, however long the host takes to give it that.
WITHOUT_FACES = MediaPlan(crops=CropPlan(patches=4, face_patches=0))
BURNS_AND_IS_KILLED = """
import os, signal, socket, time
from ingest.sandbox import forks, wire
def run(parent):
    wire.send_greeting(parent, None)
    while item := wire.receive_item(parent):
        end = time.process_time() + 0.2
        while time.process_time() < end: pass
        os.kill(os.getpid(), signal.SIGKILL)
forks.serve(socket.socket(fileno=0), run)
"""


@contextmanager
def a_fifth_of_a_core(child):
    """Let a child run for a fifth of the time, as on a host of five as hungry."""
    over = threading.Event()

    def throttle():
        while not over.wait(0.02):
            child.suspend()
            over.wait(0.08)
            child.resume()

    thread = threading.Thread(target=throttle)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_picture_of_endless_scans_is_a_dead_letter_by_processor_time_on_a_busy_host(monkeypatch, one_child):
    monkeypatch.setattr(child_module, "MAX_DECODE_PROCESSOR_S", 1.0)
    # So long it may stand still; it takes five times as long in all.
    monkeypatch.setattr(child_module, "DECODE_TIMEOUT_S", 1.0)
    data = slow_jpeg(4000, 3000)
    assert len(data) < 400_000
    with one_child() as (sandbox, child):
        began_s = used_s(child)
        with a_fifth_of_a_core(child):
            error = sandbox.submit(data, WITHOUT_FACES).exception(120)
            assert began_s + 1 <= used_s(child) <= began_s + 2
    assert isinstance(error, DecodeError)
    assert error.reason == "timeout"


def test_honest_media_gets_its_crops_at_a_fifth_of_a_core(monkeypatch, one_child):
    monkeypatch.setattr(child_module, "DECODE_TIMEOUT_S", 0.5)
    with one_child() as (sandbox, child), a_fifth_of_a_core(child):
        assert len(sandbox.submit(slow_jpeg(4000, 30), WITHOUT_FACES).result(120).crops) == 4


@pytest.mark.parametrize("added_up", [True, False], ids=["added up", "control: each try anew"])
def test_tries_that_the_host_ends_add_up_until_the_item_is_a_dead_letter(monkeypatch, one_child, added_up):
    program = [sys.executable, "-c", BURNS_AND_IS_KILLED]
    monkeypatch.setattr("ingest.sandbox.forks.command", lambda: program)
    monkeypatch.setattr(child_module, "MAX_DECODE_PROCESSOR_S", 1.0)
    if not added_up:
        monkeypatch.setattr(sandbox_module.RetryBudget, "add", lambda *_: None)
    with one_child() as (sandbox, _):
        errors = [sandbox.submit(photo(), WITHOUT_FACES).exception(120) for _ in range(2)]
        other = sandbox.submit(photo(128), WITHOUT_FACES).exception(120)
    # Three tries each: 0.6 s, then the fifth try in all is the last.
    assert isinstance(errors[0], SandboxUnavailableError)
    assert isinstance(errors[1], DecodeError) == added_up
    assert isinstance(other, SandboxUnavailableError)


def test_looks_at_one_item_share_its_processor_time(one_child):
    data = slow_jpeg(2000, 30)
    with one_child() as (sandbox, _):
        first = sandbox.submit(data, WITHOUT_FACES).result(60)
        second = sandbox.submit(data, WITHOUT_FACES, 2.5).result(60)
        spent = sandbox.submit(data, WITHOUT_FACES, child_module.MAX_DECODE_PROCESSOR_S).exception(60)
    assert 0 < first.processor_s < 2.5 < second.processor_s
    assert isinstance(spent, DecodeError)
    assert spent.reason == "timeout"


def test_an_answer_ends_the_account_and_the_oldest_of_too_many_is_forgotten(monkeypatch):
    monkeypatch.setattr(sandbox_module, "_MOST_UNANSWERED", 2)
    unanswered = sandbox_module.RetryBudget()
    for media in (b"a", b"b", b"a", b"c"):
        unanswered.add(media, 1.5)
    assert [unanswered.seconds(media) for media in (b"a", b"b", b"c")] == [3.0, 0.0, 1.5]
    unanswered.end(b"a")
    assert unanswered.seconds(b"a") == 0.0


def test_whoever_waits_for_a_busy_host_goes_on_beating(monkeypatch):
    monkeypatch.setattr("ingest.sandbox.sandbox._BEAT_INTERVAL_S", 0.01)
    decoding = Future()
    beats = []

    def beat():
        beats.append(time.monotonic())
        if len(beats) == 3:
            decoding.set_exception(DecodeError("corrupt", "over"))

    with pytest.raises(DecodeError, match="over"):
        wait_decoded(decoding, beat)

"""Faults of the host are never faults of the media; faults of the media are never the host's."""

import os
import signal
import sys
import time
from collections.abc import Callable

import psutil
import pytest
from media import long_gif, photo

from ingest import metrics
from ingest.records import CropPlan, MediaPlan
from ingest.sandbox import child as child_module
from ingest.sandbox.decode import DecodeError
from ingest.sandbox.sandbox import Sandbox, SandboxUnavailableError
from ingest.settings import IngestSettings

pytestmark = pytest.mark.slow

PLAN = MediaPlan(crops=CropPlan(patches=4, face_patches=0))
STAND_IN = """
import os, signal, socket, time
from ingest.sandbox import forks, wire
from ingest.sandbox.decode import DecodeError
def run(parent):
    served = 0
    wire.send_greeting(parent, None)
    while item := wire.receive_item(parent):
        served += 1
        {answer}
forks.serve(socket.socket(fileno=0), run)
"""


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Put another program in the child's place: what it does with an item is given."""

    def place(answer: str) -> None:
        program = STAND_IN.format(answer=answer.replace("\n", "\n        "))
        monkeypatch.setattr("ingest.sandbox.forks.command", lambda: [sys.executable, "-c", program])

    return place


def restarts(reason: str) -> float:
    return metrics.SANDBOX_RESTARTS.labels(reason)._value.get()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT])
def test_a_signal_to_all_processes_of_the_service_costs_no_item(number, one_child):
    with one_child() as (sandbox, child):
        future = sandbox.submit(long_gif(2000, 60), PLAN)
        child.send_signal(number)
        assert len(future.result(60).crops) > 1
        assert child.is_running()


def test_a_child_killed_between_items_costs_none(one_child):
    with one_child() as (sandbox, child):
        child.kill()
        assert len(sandbox.submit(photo(), PLAN).result(60).crops) == 4


def test_a_child_killed_over_an_item_costs_none(monkeypatch, one_child):
    before = restarts("killed")
    monkeypatch.setattr(child_module, "MAX_DECODE_PROCESSOR_S", 60)
    with one_child() as (sandbox, child):
        idle_s = child.cpu_times().user
        future = sandbox.submit(long_gif(2000, 60), PLAN)
        while child.cpu_times().user < idle_s + 0.2:
            os.sched_yield()
        child.kill()
        assert len(future.result(60).crops) > 1
    assert restarts("killed") == before + 1


def test_children_that_are_killed_again_and_again_make_no_dead_letter(stand_in, one_child):
    stand_in("os.kill(os.getpid(), signal.SIGKILL)")
    before = restarts("killed")
    with one_child() as (sandbox, _):
        error = sandbox.submit(photo(), PLAN).exception(60)
    assert isinstance(error, SandboxUnavailableError)
    assert "killed from outside" in str(error)
    assert restarts("killed") == before + 3


def test_an_item_that_has_its_child_killed_for_memory_each_time_is_a_dead_letter(
    stand_in, monkeypatch, one_child
):
    # As the kernel does on a host with less memory than the limit: no answer to MemoryError, but SIGKILL.
    stand_in(
        f"held = bytearray(b'x') * {child_module.MAX_DECODE_MEMORY_BYTES // 2}\n"
        "end = time.process_time() + 0.5\n"
        "while time.process_time() < end: pass\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    with one_child() as (sandbox, _):
        error = sandbox.submit(photo(), PLAN).exception(60)
    assert isinstance(error, DecodeError)
    assert error.reason == "out_of_memory"


def test_a_stopped_child_is_the_hosts_fault(monkeypatch, one_child):
    monkeypatch.setattr(child_module, "DECODE_TIMEOUT_S", 1)
    with one_child() as (sandbox, child):
        child.send_signal(signal.SIGSTOP)
        error = sandbox.submit(photo(), PLAN).exception(60)
        assert isinstance(error, SandboxUnavailableError)
        assert "too busy" in str(error)
        assert child in psutil.wait_procs([child], 60)[0]
        assert len(sandbox.submit(photo(), PLAN).result(60).crops) == 4


@pytest.mark.parametrize(
    ("does", "reason", "limits"),
    [
        ("signal.pause()", "timeout", {"DECODE_TIMEOUT_S": 5}),
        (
            "signal.signal(signal.SIGXCPU, signal.SIG_IGN)\nwhile True: pass",
            "timeout",
            {"MAX_DECODE_PROCESSOR_S": 1, "DECODE_TIMEOUT_S": 60},
        ),
        ("while True: parent.send(bytes(1)); time.sleep(0.3)", None, {"DECODE_TIMEOUT_S": 5}),
        ("os.abort()", "crashed", {}),
        *(
            (f"wire.send(parent, {answer}, [bytes(3)], wire.wait)", "crashed", {})
            for answer in ("b'{}'", 'b\'{"reason": "what", "message": ""}\'', "b'['")
        ),
    ],
    ids=["sleeps", "blocks its limit's signal", "trickles", "ends", "no answer", "no reason", "no JSON"],
)
def test_a_decoder_that_gives_no_answer_is_the_medias_fault(
    does, reason, limits, stand_in, monkeypatch, one_child
):
    stand_in(does)
    for name, limit in limits.items():
        monkeypatch.setattr(child_module, name, limit)
    with one_child() as (sandbox, _):
        error = sandbox.submit(photo(), PLAN).exception(60)
    assert isinstance(error, DecodeError)
    assert reason in (None, error.reason)


def test_an_item_pays_for_no_damage_that_one_before_it_did(stand_in, one_child):
    stand_in("served > 1 and os.abort()\nwire.send_rejection(parent, DecodeError('corrupt', 'served'))")
    with one_child() as (sandbox, _):
        errors = [sandbox.submit(photo(), PLAN).exception(60) for _ in range(3)]
    assert [str(error) for error in errors] == ["served"] * 3


def test_the_last_try_is_made_while_no_other_child_decodes(stand_in):
    stand_in("os.kill(os.getpid(), signal.SIGKILL)")
    before = restarts("killed")
    with Sandbox(IngestSettings(decode_processes=2)) as sandbox:
        with sandbox._turns.take(alone=False):  # as if another item were being decoded
            future = sandbox.submit(photo(), PLAN)
            deadline = time.monotonic() + 180
            while not (restarts("killed") == before + 2 and sandbox._turns._taking.locked()):
                assert time.monotonic() < deadline
                os.sched_yield()
            assert not future.done()
        assert isinstance(future.exception(60), SandboxUnavailableError)
    assert restarts("killed") == before + 3

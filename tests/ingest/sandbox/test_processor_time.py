"""An item is to blame for the processor time that it takes, however long the host takes to give it that."""

import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager

import psutil
import pytest
from media import photo, slow_jpeg

from ingest.records import CropPlan, Decoded, MediaPlan
from ingest.sandbox import child as child_module
from ingest.sandbox import sandbox as sandbox_module
from ingest.sandbox.child import used_s
from ingest.sandbox.decode import DecodeError
from ingest.sandbox.sandbox import SandboxUnavailableError, wait_decoded

pytestmark = pytest.mark.slow

PLAN = MediaPlan(crops=CropPlan(patches=4, face_patches=0))
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
def a_fifth_of_a_core(child: psutil.Process) -> Iterator[None]:
    """Let a child run for a fifth of the time, as on a host of five as hungry."""
    over = threading.Event()

    def throttle() -> None:
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


def test_a_picture_of_endless_scans_is_a_dead_letter_by_its_processor_time_also_at_a_fifth_of_a_core(
    monkeypatch, one_child
):
    monkeypatch.setattr(child_module, "MAX_DECODE_PROCESSOR_S", 1.0)
    # So long it may stand still; it takes five times as long in all.
    monkeypatch.setattr(child_module, "DECODE_TIMEOUT_S", 1.0)
    data = slow_jpeg(4000, 3000)
    assert len(data) < 400_000
    with one_child() as (sandbox, child):
        began_s = used_s(child)
        with a_fifth_of_a_core(child):
            error = sandbox.submit(data, PLAN).exception(120)
            assert began_s + 1 <= used_s(child) <= began_s + 2
    assert isinstance(error, DecodeError)
    assert error.reason == "timeout"


def test_honest_media_gets_its_crops_at_a_fifth_of_a_core(monkeypatch, one_child):
    monkeypatch.setattr(child_module, "DECODE_TIMEOUT_S", 0.5)
    with one_child() as (sandbox, child), a_fifth_of_a_core(child):
        assert len(sandbox.submit(slow_jpeg(4000, 30), PLAN).result(120).crops) == 4


@pytest.mark.parametrize("added_up", [True, False], ids=["added up", "control: each try anew"])
def test_tries_that_the_host_ends_are_added_up_until_the_item_is_a_dead_letter(
    monkeypatch, one_child, added_up
):
    program = [sys.executable, "-c", BURNS_AND_IS_KILLED]
    monkeypatch.setattr("ingest.sandbox.forks.command", lambda: program)
    monkeypatch.setattr(child_module, "MAX_DECODE_PROCESSOR_S", 1.0)
    if not added_up:
        monkeypatch.setattr(sandbox_module.RetryBudget, "add", lambda *_: None)
    with one_child() as (sandbox, _):
        errors = [sandbox.submit(photo(), PLAN).exception(120) for _ in range(2)]
        other = sandbox.submit(photo(128), PLAN).exception(120)
    # Three tries each: 0.6 s, then the fifth try in all is the last.
    assert isinstance(errors[0], SandboxUnavailableError)
    assert isinstance(errors[1], DecodeError) == added_up
    assert isinstance(other, SandboxUnavailableError)


def test_looks_at_one_item_share_its_processor_time(one_child):
    data = slow_jpeg(2000, 30)
    with one_child() as (sandbox, _):
        first = sandbox.submit(data, PLAN).result(60)
        second = sandbox.submit(data, PLAN, 2.5).result(60)
        spent = sandbox.submit(data, PLAN, child_module.MAX_DECODE_PROCESSOR_S).exception(60)
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
    decoding: Future[Decoded] = Future()
    beats: list[float] = []

    def beat() -> None:
        beats.append(time.monotonic())
        if len(beats) == 3:
            decoding.set_exception(DecodeError("corrupt", "over"))

    with pytest.raises(DecodeError, match="over"):
        wait_decoded(decoding, beat)

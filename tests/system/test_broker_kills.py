"""The broker is killed under load and started again: the workers go on by themselves, and nothing is lost."""

import os
import signal
import time

import pytest
from streams import await_that

from deploy.local.broker import start_broker

pytestmark = [
    pytest.mark.system,
    # kafka-python leaves the sockets of connections that a killed broker refused to the garbage collector.
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]

MOST_S = 60.0


@pytest.fixture
def running(tmp_path, kafka_cache):
    """The broker of this test alone, by itself in a list: a later one takes its place."""
    made = [start_broker(tmp_path / "broker", cache=kafka_cache)]
    yield made
    made[0].stop()


@pytest.fixture
def broker(running):
    return running[0].bootstrap


@pytest.mark.bar("B2")
def test_after_a_kill_of_the_broker_all_goes_on_within_a_minute(running, answers, slots, kafka_cache, bar):
    times, worst_s = bar.times(1, 10), 0.0
    for _ in range(times):
        answers.send(120)
        await_that(lambda: answers.read() > answers.sent - 120, 300)
        before = running[0]
        os.kill(before.process.pid, signal.SIGKILL)
        before.stop()
        held = len(answers.counted)
        running[0] = start_broker(before.folder, before.port, before.controller_port, cache=kafka_cache)
        back = time.monotonic()
        await_that(lambda held=held: answers.read() > held, 300)
        worst_s = max(worst_s, time.monotonic() - back)
        await_that(answers.reach, 300)
    bar.count(times, lost=answers.lost, twice=answers.twice, recovery_s=worst_s)
    assert (answers.lost, answers.twice, answers.in_order) == (0, 0, True)
    assert worst_s < MOST_S
    assert all(slot.process.is_alive() for slot in slots)


@pytest.mark.bar("B2")
def test_control_a_worker_that_never_retries_ends_with_its_broker(running, answers, slots, kafka_cache, bar):
    if not bar.long:
        pytest.skip("the worker waits for half a minute before it has doubts")
    slot = slots[0]
    slots[1].kill()
    slot.kill()
    slot.without = "trying again"
    slot.start()
    slot.arm("before commit", signal.SIGSTOP)
    await_that(lambda: answers.go_on() and slot.came_to_it, 300)
    before = running[0]
    os.kill(before.process.pid, signal.SIGKILL)
    before.stop()
    os.kill(slot.process.pid, signal.SIGCONT)
    await_that(lambda: not slot.process.is_alive(), 300)
    bar.count(1)
    running[0] = start_broker(before.folder, before.port, before.controller_port, cache=kafka_cache)

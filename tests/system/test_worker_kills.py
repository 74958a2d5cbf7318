"""Detector workers are killed, stopped and replaced: each item has one answer, in the order of its key."""

import os
import random
import signal
from functools import partial

import pytest
from answers import KEYS
from dying import POINTS
from streams import await_that

pytestmark = pytest.mark.system

MOST_STILL_S = 75.0
"""A member that is away is put out after 9 s, and what it left open is ended after 60 more."""


@pytest.mark.bar("B1")
def test_killed_at_each_point_workers_answer_each_item_once_in_its_keys_order(answers, slots, bar):
    count, kills = bar.times(360, 10_000), bar.times(6, 30)
    chance, points = random.Random(0), (*POINTS, None)
    for kill in range(kills):
        answers.send(count // (kills + 1))
        slot, point = slots[kill % 2], points[kill % len(points)]
        if point is None:
            await_that(partial(answers.reach, chance.randrange(answers.sent)), 600)
        else:
            slot.arm(point)
            await_that(lambda slot=slot: answers.go_on() and not slot.process.is_alive(), 600)
        slot.kill()
        slot.start()
    answers.send(max(0, count - answers.sent))
    await_that(answers.reach, 900)
    bar.count(kills, lost=answers.lost, twice=answers.twice, recovery_s=answers.still_s)
    assert (answers.lost, answers.twice, answers.in_order) == (0, 0, True)


@pytest.mark.bar("B1")
def test_control_where_offsets_are_committed_apart_a_kill_between_doubles(answers, slots, bar):
    for slot in slots:
        slot.kill()
    slot = slots[0]
    slot.without = "one transaction"
    slot.start()
    slot.arm("after send")
    answers.send(40)
    await_that(lambda: not slot.process.is_alive(), 300)
    slot.kill()
    slot.start()
    await_that(answers.reach, 300)
    bar.count(1, lost=answers.lost, twice=answers.twice)
    assert answers.twice


@pytest.mark.bar("B3")
def test_a_worker_that_stood_still_past_its_session_commits_nothing_any_more(answers, slots, bar):
    times = bar.times(1, 10)
    for turn in range(times):
        zombie = slots[turn % 2]
        zombie.arm("after poll" if turn % 2 == 0 else "before commit", signal.SIGSTOP)
        await_that(lambda zombie=zombie: answers.go_on() and zombie.came_to_it, 300)
        answers.send(KEYS)
        await_that(answers.reach, 300)  # by the other one
        os.kill(zombie.process.pid, signal.SIGCONT)
        answers.send(KEYS)
        await_that(answers.reach, 300)
    bar.count(times, lost=answers.lost, twice=answers.twice, recovery_s=answers.still_s)
    assert (answers.lost, answers.twice, answers.in_order) == (0, 0, True)


@pytest.mark.bar("B3")
def test_control_where_offsets_come_without_the_membership_who_was_put_out_doubles(answers, slots, bar):
    zombie = slots[0]
    zombie.kill()
    zombie.without = "membership"
    zombie.start()
    zombie.arm("after poll", signal.SIGSTOP)
    await_that(lambda: answers.go_on() and zombie.came_to_it, 300)
    await_that(answers.reach, 300)  # by the other one
    os.kill(zombie.process.pid, signal.SIGCONT)
    await_that(lambda: answers.read() and answers.twice, 300)
    bar.count(1, lost=answers.lost, twice=answers.twice)


@pytest.mark.bar("B5")
def test_while_workers_come_and_go_no_partition_stands_still_for_long(answers, slots, bar):
    turns = bar.times(3, 10)
    for turn in range(turns):
        answers.send(60)
        slot = slots[turn % 2]
        if turn % 3 == 2:
            slot.kill()
        else:
            await_that(lambda slot=slot: slot.ready, 300)
            slot.process.terminate()
            slot.process.join(60)
            assert slot.process.exitcode == 0
        await_that(partial(answers.reach, answers.sent - 30), 300)
        slot.start()
        await_that(answers.reach, 300)
    bar.count(turns, lost=answers.lost, twice=answers.twice, recovery_s=answers.still_s)
    assert (answers.lost, answers.twice, answers.in_order) == (0, 0, True)
    assert answers.still_s < MOST_STILL_S


@pytest.mark.bar("B5")
def test_control_where_a_session_is_long_what_a_killed_worker_had_stands_still(answers, slots, bar):
    if not bar.long:
        pytest.skip("it stands still for longer than a minute")
    for slot in slots:
        slot.kill()
        slot.without = "session"
        slot.start()
    answers.send(60)
    await_that(answers.reach, 300)
    slots[0].kill()
    answers.send(60)
    await_that(lambda: answers.read() and answers.stands_still_s > MOST_STILL_S, 300)
    bar.count(1)

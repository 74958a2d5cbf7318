"""Each process of a stack is told to stop under load: it ends well, and loses nothing."""

import time
from contextlib import suppress
from dataclasses import dataclass

import psutil
import pytest
from on_trial import Trials
from serving_faults import family, launched, still_run
from streams import await_that

pytestmark = pytest.mark.system

OURS = {"detector": "exit status 0", "memory": "exit status 0", "updater": "exit status 0"}
OURS |= {"deploy": "exit status 0"}
JVMS = {"torchserve": "exit status 143", "broker": "exit status 143"}
"""Without a process of ours around it a JVM says so that it was told to."""
MOST_S = 30.0


@dataclass(frozen=True)
class Ended:
    """How a process ended: the seconds that it took, what it said, and which children outlived it by 10 s."""

    seconds: float
    why: str | None
    orphans: list[psutil.Process]


def told_to_stop(trials: Trials, name: str) -> Ended:
    before = trials.kept(name)
    process, *children = family(before.pid)
    told_s = time.monotonic()
    process.terminate()
    await_that(lambda: not still_run([process]), 120)
    took_s = time.monotonic() - told_s
    with suppress(AssertionError):  # TorchServe's Python ends a moment after its JVM
        await_that(lambda: not still_run(children), 10)
    orphans = still_run(children)
    await_that(lambda: trials.kept(name).restarts > before.restarts)
    return Ended(took_s, trials.kept(name).why, orphans)


@pytest.mark.bar("K2")
def test_a_process_that_is_told_to_stop_under_load_ends_with_0_and_loses_nothing_and_leaves_no_child(
    trials, stream, bar
):
    told = OURS | (JVMS if bar.long else {})
    turns, longest_s, wrong, worst_s = bar.times(1, 20), dict.fromkeys(told, 0.0), list[object](), 0.0
    for _ in range(turns):
        for name, why in told.items():
            ended = told_to_stop(trials, name)
            longest_s[name] = max(longest_s[name], ended.seconds)
            if ended.why != why or ended.orphans:
                wrong.append((name, ended))
        worst_s = max(worst_s, stream.recovery_s())
    stream.drain()
    lost = stream.lost + len(stream.dead_letters.keys() & stream.sent_s.keys())
    print(f"{turns} each, longest {longest_s}, {len(stream.sent_s)} items, back after {worst_s:.1f} s")
    bar.count(turns * len(told), lost=lost, twice=stream.twice, recovery_s=worst_s)
    assert (lost, stream.twice, wrong) == (0, 0, [])
    assert max(longest_s.values()) < MOST_S


@pytest.mark.bar("K2")
def test_control_a_process_that_does_not_meet_the_signal_ends_by_it(trials, stream, bar):
    with launched(trials.stack, "detector", without="signals"):
        stream.recovery_s()
        ended = told_to_stop(trials, "detector")
    bar.count(1)
    assert ended.why == "terminated by SIGTERM"

"""Swaps under load on the real TorchServe: no request fails, and none leaves anything behind."""

import time
from contextlib import suppress
from dataclasses import dataclass

import psutil
import pytest
from serving_faults import family, launched, metric, model_workers, rss_bytes, still_run
from streams import await_that

pytestmark = pytest.mark.system

RETRIES = "forgewatch_detector_model_retries_total"
HOLDERS = ("torchserve", "detector")
SETTLED, MOST_GROWTH = 5, 0.1
"""From this swap on TorchServe and the worker grow by no more than that share."""


@pytest.mark.bar("S1")
def test_swaps_both_ways_under_load_fail_nothing_and_leave_nothing(trials, champion, stream, tmp_path, bar):
    swaps, port = bar.times(2, 20), trials.stack.ports.detector_metrics
    pids = {name: trials.kept(name).pid for name in HOLDERS}
    retries, began_s = metric(port, RETRIES), time.monotonic()
    served, held, loaded = {champion.digest}, list[dict[str, int]](), 0
    with trials.torchserve() as client:

        def is_alone(release):
            nonlocal loaded
            versions = client.versions().keys()
            loaded = max(loaded, len(versions))
            # TorchServe's word comes before the process of what it unloaded has ended.
            return versions == {release.version} and len(model_workers(pids["torchserve"])) == 1

        for swap in range(1, swaps + 1):
            turned_s, release = time.monotonic(), champion
            if swap % 2:
                release = trials.next_release(champion, tmp_path / str(swap), swap)
                trials.approve(release, "now")
            else:
                with trials.api() as api:
                    api.rollback("only a test", retract=False)
            await_that(lambda at=turned_s, to=release: to.digest in stream.released(at) and is_alone(to))
            served.add(release.digest)
            held.append({name: rss_bytes(pid) for name, pid in pids.items()})
    ended_s = time.monotonic()
    stream.drain()
    retried = int(metric(port, RETRIES) - retries)
    failed = stream.lost + retried + len(stream.dead_letters.keys() & stream.sent_s.keys())
    growth = {
        name: max((each[name] / held[SETTLED - 1][name] - 1 for each in held[SETTLED:]), default=0.0)
        for name in HOLDERS
    }
    longest_s = stream.worst_s(began_s, ended_s)
    shown = {name: [round(each[name] / 2**20) for each in held] for name in HOLDERS}
    print(f"{swaps} swaps, {len(stream.sent_s)} items, most loaded {loaded}; MiB {shown}, growth {growth}")
    bar.count(swaps, lost=failed, twice=stream.twice, recovery_s=longest_s)
    assert (failed, stream.twice) == (0, 0)
    assert stream.released(began_s) == served
    assert {name: trials.kept(name).pid for name in HOLDERS} == pids
    assert loaded <= 2
    assert all(share <= MOST_GROWTH for share in growth.values())


# Each process of a stack is told to stop under load: it ends well, and loses nothing.
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


def told_to_stop(trials, name):
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
def test_a_process_told_to_stop_under_load_ends_with_0_loses_nothing_leaves_no_child(trials, stream, bar):
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

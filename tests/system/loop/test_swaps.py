"""Swaps under load on the real TorchServe: no request fails, and none leaves anything behind."""

import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest
from serving_faults import family, launch, launched, metric, model_workers, rss_bytes, still_run
from streams import await_that

from deploy.local.stack import launch_room

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


# TorchServe is killed, starved and left without room: the approved release comes back.
BACK_WITHIN_S = 60.0
MAY_MOUNT = subprocess.run(
    ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False
)


def speaks(stream, release, since_s):
    """Wait until a release answers what was sent since then; how long that took, seconds."""
    await_that(lambda: release.digest in stream.released(since_s), 400)
    return time.monotonic() - since_s


def fill(file):
    """Write until the disk is full."""
    with file.open("wb", buffering=0) as open_file:
        while open_file.write(bytes(4096)):
            pass


def counted(stream):
    """End the stream; how many items have no verdict, and how many more than one."""
    stream.drain()
    return stream.lost + len(stream.dead_letters.keys() & stream.sent_s.keys()), stream.twice


@pytest.mark.bar("S3")
def test_whatever_of_torchserve_is_killed_it_answers_within_a_minute(trials, champion, stream, tmp_path, bar):
    workers, servers = bar.times(1, 10), bar.times(0, 4)
    took_s = list[float]()
    for turn in range(workers + servers):
        pid = trials.kept("torchserve").pid
        for process in model_workers(pid) if turn < workers else [psutil.Process(pid)]:
            process.kill()
        took_s.append(round(speaks(stream, champion, time.monotonic()), 1))
    challenger = trials.next_release(champion, tmp_path / "challenger")
    with trials.torchserve() as client:
        trials.approve(challenger, "now")
        await_that(lambda: challenger.version in client.versions(), every_s=0.02)
    psutil.Process(trials.kept("torchserve").pid).kill()
    took_s.append(round(speaks(stream, challenger, time.monotonic()), 1))
    with trials.api() as api:
        api.rollback("only a test", retract=False)
    lost, twice = counted(stream)
    print(
        f"{workers} workers, {servers} servers, one in mid-swap: back after {[f'{s:.1f}' for s in took_s]} s"
    )
    bar.count(len(took_s), lost=lost, twice=twice, recovery_s=max(took_s))
    assert (lost, twice) == (0, 0)
    assert {stream.release[id] for id in stream.sent_s} <= {champion.digest, challenger.digest}
    assert max(took_s) < BACK_WITHIN_S


@pytest.mark.bar("S3")
def test_control_what_torchserve_lost_does_not_come_back_unless_it_is_registered_again(trials, stream, bar):
    port, ping = trials.stack.ports.detector_metrics, f"http://127.0.0.1:{trials.stack.ports.torchserve}/ping"
    with launched(trials.stack, "detector", without="healing"):
        stream.recovery_s()
        psutil.Process(trials.kept("torchserve").pid).kill()
        killed_s, tried = time.monotonic(), metric(port, RETRIES)

        def is_back():
            try:
                return httpx.get(ping, timeout=5, trust_env=False).is_success
            except httpx.TransportError:
                return False

        await_that(is_back, every_s=0.2)
        await_that(lambda: metric(port, RETRIES) > tried + 20, every_s=0.2)
        answered = stream.since(killed_s, stream.answered_s)
    assert not answered
    lost, twice = counted(stream)
    bar.count(1, lost=lost, twice=twice, recovery_s=time.monotonic() - killed_s)


# No control: what is in the way of a full disk is no guard, but that a release is swapped once it is whole.
@pytest.mark.bar("S3")
@pytest.mark.skipif(MAY_MOUNT.returncode != 0, reason=f"no own mounts: {MAY_MOUNT.stderr!r}")
def test_where_the_disk_of_releases_is_full_the_live_one_answers_and_the_next_comes_with_room(
    trials, champion, stream, tmp_path, bar
):
    stack, port = trials.stack, trials.stack.ports.detector_metrics
    cache = Path(stack.settings["FORGEWATCH_DETECTOR_MODEL_STORE_DIR"]) / "artifacts"
    size = 3 * sum(path.stat().st_size for path in champion.folder.iterdir())
    mount = f'mount -t tmpfs -o size={size} none "$0" && exec "$@"'
    worker = ["unshare", "-rm", "sh", "-c", mount, str(cache), sys.executable, "-P", "-m", "detector"]
    try:
        launch(stack, "detector", worker)
        stream.recovery_s()
        seen = Path(f"/proc/{trials.kept('detector').pid}/root") / cache.relative_to("/") / "filler"
        with pytest.raises(OSError, match="No space left on device"):
            fill(seen)
        swaps = metric(port, "forgewatch_detector_swaps_total")
        challenger = trials.next_release(champion, tmp_path / "next", 2)
        trials.approve(challenger, "now")
        approved_s = time.monotonic()
        await_that(lambda: metric(port, "forgewatch_detector_swaps_total") >= swaps + 2, every_s=0.2)
        speaks(stream, champion, time.monotonic())
        assert challenger.digest not in stream.released(approved_s)
        seen.unlink()
        took_s = speaks(stream, challenger, time.monotonic())
        with trials.api() as api:
            api.rollback("only a test", retract=False)
    finally:
        launch_room(stack.supervisor, stack.run, "detector")
    lost, twice = counted(stream)
    bar.count(1, lost=lost, twice=twice, recovery_s=took_s)
    assert (lost, twice) == (0, 0)
    assert took_s < BACK_WITHIN_S

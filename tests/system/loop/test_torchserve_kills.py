"""TorchServe is killed, starved and left without room: the approved release comes back."""

import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest
from serving_faults import launch, launched, metric, model_workers
from streams import await_that

from deploy.local.stack import launch_room

pytestmark = pytest.mark.system

MOST_S = 60.0
RETRIES = "forgewatch_detector_model_retries_total"
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
    assert max(took_s) < MOST_S


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
    assert took_s < MOST_S

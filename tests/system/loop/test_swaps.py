"""Swaps under load on the real TorchServe: no request fails, and none leaves anything behind."""

import time

import pytest
from serving_faults import metric, model_workers, rss_bytes
from streams import await_that

from detector.release.artifact import Artifact

pytestmark = pytest.mark.system

RETRIES = "forgewatch_detector_model_retries_total"
HOLDERS = ("torchserve", "detector")
SETTLED, MOST_GROWTH = 5, 0.1
"""From this swap on TorchServe and the worker grow by no more than that share."""


@pytest.mark.bar("S1")
def test_swaps_in_both_directions_under_load_fail_no_request_and_leave_nothing_behind(
    trials, champion, stream, tmp_path, bar
):
    swaps, port = bar.times(2, 20), trials.stack.ports.detector_metrics
    pids = {name: trials.kept(name).pid for name in HOLDERS}
    retries, began_s = metric(port, RETRIES), time.monotonic()
    served, held, loaded = {champion.digest}, list[dict[str, int]](), 0
    with trials.torchserve() as client:

        def is_alone(release: Artifact) -> bool:
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
            await_that(lambda at=turned_s, to=release: to.digest in stream.released(at) and is_alone(to))  # type: ignore[misc]
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

"""TorchServe is away, ill or killed under load: no dead letter for it, and the worker goes on by itself."""

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import cast

import pytest
from bars import Bar
from media_stream import Stream, picture
from on_trial import Trials
from serving_faults import (
    Answer,
    Proxy,
    family,
    killed_again_and_again,
    launched,
    metric,
    model_workers,
    rss_bytes,
)
from streams import await_that

from detector.release.artifact import Artifact

pytestmark = pytest.mark.system

MOST_S = 60.0
MOST_MORE_BYTES = 256 * 2**20
"""What a worker holds may grow so far over what it held before: two batches and what was fetched ahead."""
RETRIES = "forgewatch_detector_model_retries_total"
URL = "FORGEWATCH_DETECTOR_TORCHSERVE_URL"


@pytest.fixture(scope="module")
def proxy(trials: Trials, champion: Artifact) -> Iterator[Proxy]:
    """The worker asks its TorchServe through it."""
    stack = trials.stack
    with Proxy(stack.settings[URL]) as made, launched(stack, "detector", {URL: made.url}):
        yield made


def fault(name: str, proxy: Proxy, trials: Trials) -> AbstractContextManager[object]:
    if name == "down":
        return killed_again_and_again(lambda: family(trials.kept("torchserve").pid)[:1])
    if name == "crash-looping":
        return killed_again_and_again(lambda: model_workers(trials.kept("torchserve").pid))
    return proxy.answering(cast(Answer, name))


@pytest.mark.bar("B7")
@pytest.mark.parametrize("name", ["slow", "503", "507", "cut", "down", "crash-looping"])
def test_an_ill_torchserve_makes_no_dead_letter_and_the_worker_goes_on_by_itself(
    trials: Trials, proxy: Proxy, stream: Stream, name: str, bar: Bar
) -> None:
    port, pid = trials.stack.ports.detector_metrics, trials.kept("detector").pid
    stream.recovery_s()  # a worker that just started holds little yet
    before = most = rss_bytes(pid)
    proxy.slow_s = bar.times(1, 35)  # longer than the worker waits for an answer
    retries, answered, began_s = metric(port, RETRIES), proxy.answered, time.monotonic()

    def has_lasted() -> bool:
        nonlocal most
        most = max(most, rss_bytes(pid))
        tried = metric(port, RETRIES) - retries + (proxy.answered - answered if name == "slow" else 0)
        return tried >= 3 and time.monotonic() - began_s > bar.times(0, 45)

    with fault(name, proxy, trials):
        stream.send(map(picture, range(bar.times(50, 2000))))
        await_that(has_lasted, 300, every_s=0.2)
    took_s = stream.goes_on_s()
    stream.drain()
    lost, dead = stream.lost, len(stream.dead_letters.keys() & stream.sent_s.keys())
    more = f"{before / 2**20:.0f} MiB and {(most - before) / 2**20:.0f} more"
    print(f"{name}: back after {took_s:.1f} s, {len(stream.sent_s)} items, {more}")
    bar.count(1, lost=lost + dead, twice=stream.twice, recovery_s=took_s)
    assert (lost, dead, stream.twice) == (0, 0, 0)
    assert most - before < MOST_MORE_BYTES
    assert trials.kept("detector").pid == pid
    assert took_s < MOST_S


@pytest.mark.bar("B7")
def test_control_without_retries_an_ill_torchserve_makes_dead_letters(
    trials: Trials, proxy: Proxy, stream: Stream, bar: Bar
) -> None:
    with launched(trials.stack, "detector", {URL: proxy.url}, without="retries"):
        stream.recovery_s()
        with proxy.answering("503"):
            await_that(lambda: bool(stream.dead_letters.keys() & stream.sent_s.keys()))
        stream.drain()
    bar.count(1, lost=len(stream.dead_letters.keys() & stream.sent_s.keys()))

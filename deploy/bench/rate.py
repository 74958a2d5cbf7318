"""How fast media streams through a stack, from the first record sent to the last verdict read."""

import time
from collections.abc import Sequence
from typing import NamedTuple

from deploy.demo.operator import Story
from deploy.demo.traffic import Traffic
from detector.records import Verdict
from updater.benchmark.synthetic.stream import MediaSample

WARM_UP = 64


class Rate(NamedTuple):
    """Images per second, 0 where another release spoke than the one that was meant; and what was said."""

    per_second: float
    verdicts: list[Verdict]


def streamed(story: Story, traffic: Traffic, samples: Sequence[MediaSample], digest: str) -> Rate:
    """Stream the samples once through the release of this digest. Raises TrafficError."""
    started = time.perf_counter()
    sent = traffic.send(samples, "before")
    with story.bar("streamed") as bar:
        traffic.wait(sent, bar)
    seconds = traffic.newest_s - started
    verdicts = [traffic.verdicts[message.id] for message in sent]
    of_it = all(verdict.release == digest for verdict in verdicts)
    return Rate(len(samples) / seconds if of_it else 0.0, verdicts)


def await_release(story: Story, traffic: Traffic, samples: Sequence[MediaSample], digest: str) -> None:
    """Stream the first samples until the release of this digest answers them all. Raises TrafficError."""
    while not streamed(story, traffic, samples[:WARM_UP], digest).per_second:
        pass

"""How long a verdict takes at half load, from the producer that takes a picture to who reads verdicts."""

import statistics
from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel

from deploy.bench.rate import bare
from deploy.demo.operator import Story
from deploy.demo.traffic import Traffic
from detector.release.contract import Contract
from detector.serving.session import Session
from updater.benchmark.synthetic.stream import MediaSample


class Latency(BaseModel):
    """Milliseconds from produced to verdict, over `items` pictures that come at a steady rate.

    alone_ms: what decoding a picture and one pass of the model take by themselves, on average. ratio: p99_ms
    over that. p99s_ms: of each round.
    """

    per_second: float
    items: int
    p50_ms: float
    p99_ms: float
    p99s_ms: list[float]
    alone_ms: float
    ratio: float


def latency(
    story: Story,
    traffic: Traffic,
    session: Session[Contract],
    samples: Sequence[MediaSample],
    per_second: float,
    rounds: int,
) -> Latency:
    """Stream the samples at this rate, round by round, and time each verdict. Raises TrafficError."""
    took_ms, alone_ms = [], []
    for number in range(rounds):
        sent = traffic.send(samples, "before", per_second=per_second)
        with story.bar("at half load") as bar:
            traffic.wait(sent, bar)
        took_ms.append([1000 * (traffic.answered_s[message.id] - message.handed_s) for message in sent])
        alone_ms.append(1000 / bare(session, samples, batch=1).per_second)
        story.say(f"round {number + 1}: p99 {np.quantile(took_ms[-1], 0.99):.0f} ms")
    return summary(took_ms, alone_ms, per_second)


def summary(took_ms: Sequence[Sequence[float]], alone_ms: Sequence[float], per_second: float) -> Latency:
    """Sum up rounds of as many pictures each. took_ms: of each picture; alone_ms: of each round, the mean."""
    p50_ms, p99_ms = np.quantile(took_ms, [0.5, 0.99])
    return Latency(
        per_second=per_second,
        items=sum(map(len, took_ms)),
        p50_ms=float(p50_ms),
        p99_ms=float(p99_ms),
        p99s_ms=[float(np.quantile(times, 0.99)) for times in took_ms],
        alone_ms=statistics.fmean(alone_ms),
        ratio=float(p99_ms) / statistics.fmean(alone_ms),
    )

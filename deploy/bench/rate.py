"""How many images a second go from their topic to a committed verdict, and through a bare loop."""

import math
import time
from collections.abc import Sequence
from typing import NamedTuple

from deploy.demo.operator import Story
from deploy.demo.traffic import Traffic
from detector.records import Verdict
from detector.release.contract import Contract, request_for
from detector.release.tensors import CROPS
from detector.serving.session import Session
from detector.settings import DetectorSettings
from ingest.sandbox.extract import extract
from ingest.settings import IngestSettings
from updater.benchmark.synthetic.stream import MediaSample

WARM_UP = 64
BATCH = DetectorSettings().max_batch_items
"""pictures that a bare loop scores at a time: as many as one transaction of a detector has at most"""


class Rate(NamedTuple):
    """Images per second, 0 where another release spoke than the one that was meant; and what was said."""

    per_second: float
    verdicts: list[Verdict]


def measure_rate(story: Story, traffic: Traffic, samples: Sequence[MediaSample], digest: str) -> Rate:
    """Stream the samples once through the release of this digest. Raises TrafficError."""
    started = time.perf_counter()
    sent = traffic.send(samples, "before")
    with story.bar("streamed") as bar:
        traffic.wait(sent, bar)
    seconds = max(traffic.answered_s[message.id] for message in sent) - started
    verdicts = [traffic.verdicts[message.id] for message in sent]
    of_it = all(verdict.release == digest for verdict in verdicts)
    return Rate(len(samples) / seconds if of_it else 0.0, verdicts)


def await_release(story: Story, traffic: Traffic, samples: Sequence[MediaSample], digest: str) -> None:
    """Stream the first samples until the release of this digest answers them all. Raises TrafficError."""
    while not measure_rate(story, traffic, samples[:WARM_UP], digest).per_second:
        pass


def median_interval(values: Sequence[float]) -> tuple[float, float]:
    """Where the median of what these are drawn from lies, at 95 % or more by the sign test.

    Of fewer than six it is their range, which is no such interval.
    """
    count, below, tail = len(values), 0, 2.0 ** (1 - len(values))
    while tail <= 0.05:
        below += 1
        tail += math.comb(count, below) * 2.0 ** (1 - count)
    place = max(0, below - 1)
    return sorted(values)[place], sorted(values)[-1 - place]


class Bare(NamedTuple):
    """Images per second of a bare loop, its seconds in the model, and how many crops they had."""

    per_second: float
    model_s: float
    crops: int


def bare(session: Session[Contract], samples: Sequence[MediaSample], batch: int = BATCH) -> Bare:
    """Decode, crop and score the same bytes here, `batch` pictures at a time."""
    contract, limit = session.contract, IngestSettings().max_pixels
    model_s, crops, started = 0.0, 0, time.perf_counter()
    for first in range(0, len(samples), batch):
        some = samples[first : first + batch]
        request = request_for([extract(sample.data, contract.media_plan, limit) for sample in some], contract)
        before = time.perf_counter()
        session.score(request)
        model_s += time.perf_counter() - before
        crops += len(request[CROPS])
    return Bare(len(samples) / (time.perf_counter() - started), model_s, crops)

"""How far a swap under steady load lets the rate of verdicts fall, and for how long."""

import itertools
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from pydantic import BaseModel

from deploy.bench.stock import go_live, twin
from deploy.demo.operator import Story
from deploy.demo.traffic import Traffic
from deploy.local.stack import Stack
from detector.release.artifact import Artifact
from updater.benchmark.synthetic.stream import MediaSample

LEAD_S, TAIL_S = 30.0, 10.0
_LOOK_S = 0.1
_STEP_S = 0.1
_DEEP = 0.1
"""A second with fewer verdicts than nine tenths of the items that come is of a dip."""


class Dip(BaseModel):
    """Verdicts that are missing against the items that come.

    second, five: of the worst 1 and 5 seconds, as a share of the items that come in them.
    lasts_s: of the longest time in which each second misses over a tenth, how long.
    """

    second: float
    five: float
    lasts_s: float


class SwapDip(BaseModel):
    """Each round's dip from the approval to 10 s after the new release's first verdict, and before it.

    took_s: from the approval to that verdict.
    """

    per_second: float
    swaps: list[Dip]
    steady: list[Dip]
    took_s: list[float]


def swap_dip(
    story: Story,
    stack: Stack,
    traffic: Traffic,
    artifact: Artifact,
    samples: Sequence[MediaSample],
    per_second: float,
    rounds: int,
) -> SwapDip:
    """Swap to a twin of the live release that was never loaded, in each round, while the samples stream.

    Raises TrafficError, DeployError and LedgerError.
    """
    result = SwapDip(per_second=per_second, swaps=[], steady=[], took_s=[])
    for number in range(rounds):
        artifact = twin(artifact, stack.run / f"swap-{number}")
        began_s, before = time.perf_counter(), len(traffic.sent)
        with _steady(traffic, samples, per_second):
            time.sleep(LEAD_S)
            approved_s = time.perf_counter()
            go_live(artifact, stack.settings)
            while not _has_answered(traffic, artifact.digest):
                time.sleep(_LOOK_S)
            spoken_s = time.perf_counter()
            time.sleep(TAIL_S)
        sent = traffic.sent[before:]
        with story.bar("answers") as bar:
            traffic.wait(sent, bar)
        answered_s = [traffic.answered_s[message.id] for message in sent]
        result.steady.append(dip(answered_s, began_s + TAIL_S, approved_s, per_second))
        result.swaps.append(dip(answered_s, approved_s, spoken_s + TAIL_S, per_second))
        result.took_s.append(spoken_s - approved_s)
        story.say(
            f"round {number + 1}: {result.took_s[-1]:.1f} s until the new release answered; "
            f"{result.swaps[-1].five:.0%} of five seconds' verdicts missing"
        )
    return result


@contextmanager
def _steady(traffic: Traffic, samples: Sequence[MediaSample], per_second: float) -> Iterator[None]:
    """Send the samples again and again at this rate, all the time."""
    stop = threading.Event()
    streaming = itertools.takewhile(lambda _: not stop.is_set(), itertools.cycle(samples))
    sender = threading.Thread(target=lambda: traffic.send(streaming, "swap", per_second=per_second))
    sender.start()
    try:
        yield
    finally:
        stop.set()
        sender.join()


def _has_answered(traffic: Traffic, digest: str) -> bool:
    newest = itertools.islice(reversed(list(traffic.verdicts.values())), 64)
    return any(verdict.release == digest for verdict in newest)


def dip(answered_s: Sequence[float], begin_s: float, end_s: float, per_second: float) -> Dip:
    """The dip between two times, five seconds apart at least. answered_s: of each verdict, seconds."""
    answered = np.sort(answered_s)

    def missing(width_s: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        starts = np.arange(begin_s, end_s - width_s + _STEP_S / 2, _STEP_S)
        counts = np.searchsorted(answered, starts + width_s) - np.searchsorted(answered, starts)
        return 1 - counts / (width_s * per_second)

    runs = [len(list(run)) for deep, run in itertools.groupby(missing(1.0) > _DEEP) if deep]
    lasts_s = 1.0 + (max(runs) - 1) * _STEP_S if runs else 0.0
    return Dip(second=missing(1.0).max(), five=missing(5.0).max(), lasts_s=lasts_s)

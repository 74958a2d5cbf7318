"""What a rollout costs: images per second while a challenger scores a share of them beside the champion."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress

import httpx
import psutil
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel

from deploy.bench.rate import WARM_UP, measure_rate, median_interval
from deploy.bench.stock import go_back, go_on_trial, twin
from deploy.demo.operator import Story
from deploy.demo.traffic import Traffic, TrafficError
from deploy.local.stack import Stack
from detector.release.artifact import Artifact
from updater.benchmark.synthetic.stream import MediaSample

SHARE = 0.25
_MOST_WARM_UPS = 200


class Paired(BaseModel):
    """A ratio, with a challenger over without: round by round, their median, and its interval at 95 %."""

    ratio: float
    low: float
    high: float
    ratios: list[float]


class SharingCost(BaseModel):
    """Images per second with a challenger and without, medians over the rounds, and their ratios.

    by_processor: the ratio of images per second of a processor, spent by detector and TorchServe, which other
    load of the machine hardly moves. items: how many of the rounds with a challenger were compared, failed,
    and left out.
    """

    both: float
    alone: float
    rate: Paired
    by_processor: Paired
    images: int
    items: dict[str, int]


def sharing_cost(
    story: Story,
    stack: Stack,
    traffic: Traffic,
    artifact: Artifact,
    samples: Sequence[MediaSample],
    rounds: int,
) -> SharingCost:
    """Measure the live release with its twin as the challenger in shadow, and alone, in turn.

    Nothing is on trial at the end. Raises TrafficError, DeployError, ApprovalError and LedgerError.
    """
    challenger = twin(artifact, stack.run / "challenger")
    rates: dict[bool, list[float]] = {True: [], False: []}
    by_processor: dict[bool, list[float]] = {True: [], False: []}
    items: Counter[str] = Counter()
    on_trial = False
    for number in range(rounds):
        # First one, then the other, and the other way round in the next: the machine's speed drifts.
        for wanted in (on_trial, not on_trial):
            if wanted and not on_trial:
                go_on_trial(challenger, stack.settings, SHARE)
            elif on_trial and not wanted:
                go_back(stack.settings)
            on_trial = wanted
            items_before = _await_sharing(story, stack, traffic, artifact, samples, wanted=wanted)
            spent_s = _processor_s(stack)
            rates[wanted].append(measure_rate(story, traffic, samples, artifact.digest).per_second)
            by_processor[wanted].append(len(samples) / (_processor_s(stack) - spent_s))
            items += _items(stack) - items_before
        story.say(
            f"round {number + 1}: {rates[True][-1]:.1f} images/s by both, {rates[False][-1]:.1f} by one"
        )
    if on_trial:
        go_back(stack.settings)
    return SharingCost(
        both=statistics.median(rates[True]),
        alone=statistics.median(rates[False]),
        rate=_compare_rates(rates),
        by_processor=_compare_rates(by_processor),
        images=rounds * len(samples),
        items=dict(items),
    )


def _compare_rates(rates: Mapping[bool, Sequence[float]]) -> Paired:
    ratios = [both / alone for both, alone in zip(rates[True], rates[False], strict=True)]
    low, high = median_interval(ratios)
    return Paired(ratio=statistics.median(ratios), low=low, high=high, ratios=ratios)


def _processor_s(stack: Stack) -> float:
    """Seconds of a processor that detector and TorchServe took so far, with all their processes."""
    kept = [kept.pid for kept in stack.supervisor.states() if kept.name in ("detector", "torchserve")]
    return sum(_processor_s_of(psutil.Process(pid)) for pid in kept)


def _processor_s_of(process: psutil.Process) -> float:
    with suppress(psutil.NoSuchProcess):
        times, children = process.cpu_times(), process.children()
        ended_s = float(times.children_user + times.children_system)
        return ended_s + float(times.user + times.system) + sum(map(_processor_s_of, children))
    return 0.0  # it has just ended, and its parent has its time now


def _await_sharing(
    story: Story,
    stack: Stack,
    traffic: Traffic,
    artifact: Artifact,
    samples: Sequence[MediaSample],
    *,
    wanted: bool,
) -> Counter[str]:
    """Stream the first samples until some are shared, or none; returns how many were so far, by outcome.

    Raises TrafficError where that does not come about.
    """
    for _ in range(_MOST_WARM_UPS):
        before = _items(stack)
        measure_rate(story, traffic, samples[:WARM_UP], artifact.digest)
        after = _items(stack)
        if (after != before) == wanted:
            return after
    word = "a first item is" if wanted else "no item is"
    raise TrafficError(f"{_MOST_WARM_UPS} warm-ups passed before {word} shared: detector.log says why")


def _items(stack: Stack) -> Counter[str]:
    address = f"http://127.0.0.1:{stack.ports.detector_metrics}/metrics"
    text = httpx.get(address, trust_env=False).raise_for_status().text
    return Counter(
        {
            sample.labels["outcome"]: int(sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
            if sample.name == "forgewatch_detector_shared_items_total"
        }
    )

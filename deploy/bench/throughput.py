"""`forgewatch throughput`: images per second from topic to committed verdict, and in a bare loop."""

import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from deploy.bench.latency import latency
from deploy.bench.maps_cost import maps_cost
from deploy.bench.model_cost import model_cost
from deploy.bench.rate import WARM_UP, await_release, bare, measure_rate
from deploy.bench.sharing_cost import sharing_cost
from deploy.bench.stock import go_live_with_stock
from deploy.bench.swap_dip import swap_dip
from deploy.bench.throughput_report import ThroughputReport, show
from deploy.demo import plan
from deploy.demo.operator import Operator, Story
from deploy.demo.release_zero import make_release_zero, render, restore
from deploy.demo.run import alone
from deploy.demo.traffic import Traffic, seconds_spent
from deploy.local.stack import Stack
from detector.release.artifact import Artifact
from detector.serving.rollout_source import fetch
from detector.serving.session import open_session
from detector.settings import DetectorSettings
from ingest.settings import IngestSettings
from updater.benchmark.synthetic.stream import MediaSample, make_many

HOME = Path(".forgewatch/throughput")
THREADS = plan.CORES
"""Of the model, on both sides. Decoding has one on both: dlib's detector is not made to be shared."""
IMAGES, ROUNDS = 256, 6
SHARING_IMAGES, SHARING_ROUNDS, SWAPS = 128, 24, 6
STOCK_REPEATS = 5
"""How often the same images go through the stock network in one round, which would last half a second."""


@dataclass(frozen=True)
class Measured:
    """One release's rounds: images per second streamed and bare, and the busy seconds of each part."""

    streamed: list[float]
    bare: list[float]
    busy_s: dict[str, float]
    crops_an_image: float

    @property
    def ratios(self) -> list[float]:
        return [streamed / bare for streamed, bare in zip(self.streamed, self.bare, strict=True)]


def main(report: Path | None) -> None:
    """Measure release 0 and a stock network, print and write what was found."""
    story = Story(0, plan.DEFAULT_UNSEEN)
    with alone(HOME):
        figures = _measure(story)
    if report is not None:
        report.write_text(figures.model_dump_json(indent=2) + "\n")
    show(story.console, figures)


def _measure(story: Story) -> ThroughputReport:
    tuning = plan.training_settings(story.seed, story.unseen) | {
        "FORGEWATCH_DETECTOR_MODEL_THREADS": str(THREADS),
        "FORGEWATCH_INGEST_DECODE_PROCESSES": "1",
    }
    stack = Stack(HOME, console=story.console, tuning=tuning)
    with ExitStack() as parts:
        library = plan.Library(story.seed, story.unseen)
        restored = restore(library, stack.run)
        parts.enter_context(stack)
        operator = Operator(story.console, stack.settings)
        if not restored:
            with render(library, stack.run / "library") as rendering:
                make_release_zero(story, operator, library, rendering, lambda: None)
        kafka = IngestSettings(bootstrap_servers=stack.settings["FORGEWATCH_INGEST_BOOTSTRAP_SERVERS"])
        traffic = parts.enter_context(Traffic(kafka))
        wanted = plan.after(story.seed, story.unseen)[:IMAGES]
        samples = list(make_many(story.seed, "after", wanted, processes=plan.CORES))
        digest = operator.approve_newest()
        default = _rounds(story, stack, traffic, digest, samples)
        artifact = _fetch_artifact(stack, digest)
        session = open_session(artifact, THREADS)
        half = statistics.median(default.streamed) / 2
        waited = latency(story, traffic, session, samples, half, ROUNDS)
        maps = maps_cost(story, stack, traffic, artifact, session, ROUNDS)
        sharing = sharing_cost(story, stack, traffic, artifact, samples[:SHARING_IMAGES], SHARING_ROUNDS)
        swap = swap_dip(story, stack, traffic, artifact, samples, half, SWAPS)
        cost = model_cost(open_session(artifact, threads=1), samples, stack.run)
        digest = go_live_with_stock(stack.run / "stock", stack.settings)
        stock = _rounds(story, stack, traffic, digest, samples * STOCK_REPEATS)
    rate, bare = statistics.median(default.streamed), statistics.median(default.bare)
    return ThroughputReport(
        ratio=statistics.median(default.ratios),
        images_per_second=rate,
        bare_images_per_second=bare,
        overhead_ms=1000 * (1 / rate - 1 / bare),
        shares={name: busy / sum(default.busy_s.values()) for name, busy in default.busy_s.items()},
        stock_ratio=statistics.median(stock.ratios),
        stock_images_per_second=statistics.median(stock.streamed),
        stock_bare_images_per_second=statistics.median(stock.bare),
        ratios=default.ratios,
        stock_ratios=stock.ratios,
        images=len(samples),
        threads=THREADS,
        crops_an_image=default.crops_an_image,
        model_cost=cost,
        latency=waited,
        maps=maps,
        sharing=sharing,
        swap=swap,
    )


def _fetch_artifact(stack: Stack, digest: str) -> Artifact:
    url = stack.settings["FORGEWATCH_DEPLOY_URL"]
    return fetch(digest, stack.run / "fetched", DetectorSettings(deploy_url=url))


def _rounds(
    story: Story, stack: Stack, traffic: Traffic, digest: str, samples: Sequence[MediaSample]
) -> Measured:
    """Stream and bare in turn, so that a machine whose speed drifts is as slow for one as for the other."""
    session = open_session(_fetch_artifact(stack, digest), THREADS)
    # Until the new release answers, and a whole round for the caches and compilers: neither is measured.
    await_release(story, traffic, samples, digest)
    measure_rate(story, traffic, samples, digest)
    bare(session, samples[:WARM_UP])
    rates, alone = [], []
    before = _busy(stack)
    for round_ in range(ROUNDS):
        rates.append(measure_rate(story, traffic, samples, digest).per_second)
        alone.append(bare(session, samples))
        story.say(f"round {round_ + 1}: streamed {rates[-1]:.1f} images/s, bare {alone[-1].per_second:.1f}")
    busy = {name: seconds - before[name] for name, seconds in _busy(stack).items()}
    model_s = sum(run.model_s for run in alone)
    busy_s = {
        "decode": busy["decode"],
        "model": model_s,
        "transport": max(0.0, busy["request"] - model_s),
        "second look": busy["second look"],
        "kafka": busy["transaction"],
    }
    crops = sum(run.crops for run in alone)
    return Measured(rates, [run.per_second for run in alone], busy_s, crops / (ROUNDS * len(samples)))


def _busy(stack: Stack) -> dict[str, float]:
    """Seconds that the detector's parts have spent so far."""
    address = f"http://127.0.0.1:{stack.ports.detector_metrics}/metrics"
    spent = seconds_spent(address)
    return {
        "decode": spent["forgewatch_ingest_decode"],
        "request": spent["forgewatch_detector_model"],
        "second look": spent["forgewatch_detector_second_look"],
        "transaction": spent["forgewatch_ingest_transaction"],
    }

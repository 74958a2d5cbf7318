"""`forgewatch throughput`: images per second from topic to committed verdict, and in a bare loop."""

import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel
from rich.console import Console

from deploy.bench.maps_cost import WARM_UP, MapsCost, await_release, maps_cost, streamed
from deploy.bench.model_cost import ModelCost, model_cost
from deploy.bench.stock import go_live_with_stock
from deploy.demo import plan
from deploy.demo.operator import Operator, Story
from deploy.demo.release_zero import make_release_zero, render, restore
from deploy.demo.run import alone
from deploy.demo.traffic import Traffic, seconds_spent
from deploy.local.stack import Stack
from detector.release.artifact import Artifact
from detector.release.contract import Contract, request_for
from detector.release.tensors import CROPS
from detector.serving.fetch import fetch
from detector.serving.session import Session, open_session
from detector.settings import DetectorSettings
from ingest.sandbox.extract import extract
from ingest.settings import IngestSettings
from updater.benchmark.synthetic.stream import MediaSample, make_many
from updater.terminal import print_grid

HOME = Path(".forgewatch/throughput")
THREADS = plan.CORES
"""Of the model, on both sides. Decoding has one on both: dlib's detector is not made to be shared."""
IMAGES, ROUNDS = 256, 3
STOCK_REPEATS = 5
"""How often the same images go through the stock network in one round, which would last half a second."""


class ThroughputReport(BaseModel):
    """Medians over the rounds. shares are of the stream's busy seconds: its parts overlap one another."""

    ratio: float
    images_per_second: float
    bare_images_per_second: float
    overhead_ms: float
    shares: dict[str, float]
    stock_ratio: float
    stock_images_per_second: float
    stock_bare_images_per_second: float
    ratios: list[float]
    stock_ratios: list[float]
    images: int
    threads: int
    crops_an_image: float
    model_cost: ModelCost
    maps: MapsCost


@dataclass(frozen=True)
class Measured:
    """One release's rounds: images per second streamed and bare, and the busy seconds of each part."""

    streamed: list[float]
    bare: list[float]
    busy_s: dict[str, float]
    crops_an_image: float

    @property
    def ratios(self) -> list[float]:
        """Streamed over bare, round by round."""
        return [streamed / bare for streamed, bare in zip(self.streamed, self.bare, strict=True)]


def main(report: Path | None) -> None:
    """Measure release 0 and a stock network, print and write what was found."""
    story = Story(0, plan.DEFAULT_UNSEEN)
    with alone(HOME):
        found = _measure(story)
    if report is not None:
        report.write_text(found.model_dump_json(indent=2) + "\n")
    _show(story.console, found)


def _show(console: Console, found: ThroughputReport) -> None:
    rows = (
        ("release 0", found.images_per_second, found.bare_images_per_second, found.ratio),
        (
            "stock network",
            found.stock_images_per_second,
            found.stock_bare_images_per_second,
            found.stock_ratio,
        ),
    )
    print_grid(
        console,
        f"images per second, medians of {ROUNDS} rounds",
        ("model", "topic to committed verdict", "bare loop", "ratio"),
        [(name, f"{streamed:.1f}", f"{bare:.1f}", f"{ratio:.2f}") for name, streamed, bare, ratio in rows],
    )
    cost = found.model_cost
    print_grid(
        console,
        f"processor time of the model alone, one thread, medians of {cost.pairs} pairs",
        ("release 0, an image of six crops", "ResNet18, one of 224 px", "ratio", "outer tenths"),
        [
            (
                f"{cost.release_ms:.1f} ms",
                f"{cost.resnet18_ms:.1f} ms",
                f"{cost.ratio:.2f}",
                f"{cost.low:.2f}-{cost.high:.2f}",
            )
        ],
    )
    _show_maps(console, found.maps)
    shares = ", ".join(f"{name} {share:.0%}" for name, share in found.shares.items())
    console.print(
        f"of release 0's busy seconds: {shares}; {found.overhead_ms:.1f} ms an image beyond the bare loop"
    )


def _show_maps(console: Console, cost: MapsCost) -> None:
    print_grid(
        console,
        f"what maps cost: {cost.forged} of {cost.images} pictures forged, {cost.mapped} mapped; "
        f"medians of {len(cost.ratios)} rounds",
        ("", "with maps", "without", "ratio", "least, most"),
        [
            (
                "images per second",
                f"{cost.with_maps:.1f}",
                f"{cost.without:.1f}",
                f"{cost.ratio:.2f}",
                f"{min(cost.ratios):.2f}-{max(cost.ratios):.2f}",
            )
        ],
    )
    print_grid(
        console,
        "processor time of a crop, one thread",
        ("map", "detector", "ratio", "outer tenths"),
        [
            (
                f"{cost.map_crop_ms:.2f} ms",
                f"{cost.detector_crop_ms:.2f} ms",
                f"{cost.crop_ratio:.2f}",
                f"{cost.crop_low:.2f}-{cost.crop_high:.2f}",
            )
        ],
    )
    console.print(
        f"a map adds {cost.growth.mean:,.0f} bytes to a verdict, here {cost.growth.most:,} at most; "
        f"one of noise over the largest part {cost.growth.limit:,}"
    )


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
            rendering = render(library, stack.run / "library")
            make_release_zero(story, operator, library, stack.run, rendering)
        kafka = IngestSettings(bootstrap_servers=stack.settings["FORGEWATCH_INGEST_BOOTSTRAP_SERVERS"])
        traffic = parts.enter_context(Traffic(kafka))
        wanted = plan.after(story.seed, story.unseen)[:IMAGES]
        samples = list(make_many(story.seed, "after", wanted, processes=plan.CORES))
        digest = operator.approve_newest()
        default = _rounds(story, stack, traffic, digest, samples)
        maps = maps_cost(story, stack, traffic, _fetched(stack, digest))
        cost = model_cost(open_session(_fetched(stack, digest), threads=1), samples, stack.run)
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
        maps=maps,
    )


def _fetched(stack: Stack, digest: str) -> Artifact:
    url = stack.settings["FORGEWATCH_DEPLOY_URL"]
    return fetch(digest, stack.run / "fetched", DetectorSettings(deploy_url=url))


def _rounds(
    story: Story, stack: Stack, traffic: Traffic, digest: str, samples: Sequence[MediaSample]
) -> Measured:
    """Stream and bare in turn, so that a machine whose speed drifts is as slow for one as for the other."""
    artifact = _fetched(stack, digest)
    session = open_session(artifact, THREADS)
    # Until the new release answers, and a whole round for the caches and compilers: neither is measured.
    await_release(story, traffic, samples, digest)
    streamed(story, traffic, samples, digest)
    _bare(artifact, session, samples[:WARM_UP])
    rates, bare, model_s, crops = [], [], 0.0, 0
    before = _busy(stack)
    for round_ in range(ROUNDS):
        rates.append(streamed(story, traffic, samples, digest).per_second)
        rate, seconds, count = _bare(artifact, session, samples)
        bare.append(rate)
        model_s, crops = model_s + seconds, crops + count
        story.say(f"round {round_ + 1}: streamed {rates[-1]:.1f} images/s, bare {bare[-1]:.1f}")
    busy = {name: seconds - before[name] for name, seconds in _busy(stack).items()}
    busy_s = {
        "decode": busy["decode"],
        "model": model_s,
        "transport": max(0.0, busy["request"] - model_s),
        "second look": busy["second look"],
        "kafka": busy["transaction"],
    }
    return Measured(rates, bare, busy_s, crops / (ROUNDS * len(samples)))


def _bare(
    artifact: Artifact, session: Session[Contract], samples: Sequence[MediaSample]
) -> tuple[float, float, int]:
    """The same bytes decoded, cropped and scored here: images per second, seconds in the model, crops."""
    contract, limit = artifact.manifest.contract, IngestSettings().max_pixels
    size = DetectorSettings().max_batch_items
    model_s, crops, started = 0.0, 0, time.perf_counter()
    for first in range(0, len(samples), size):
        batch = samples[first : first + size]
        request = request_for([extract(one.data, contract.media_plan, limit) for one in batch], contract)
        before = time.perf_counter()
        session.score(request)
        model_s += time.perf_counter() - before
        crops += len(request[CROPS])
    return len(samples) / (time.perf_counter() - started), model_s, crops


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

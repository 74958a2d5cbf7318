"""What `forgewatch throughput` finds, and its tables."""

import statistics
from collections.abc import Sequence

from pydantic import BaseModel
from rich.console import Console

from deploy.bench.latency import Latency
from deploy.bench.maps_cost import MapsCost
from deploy.bench.model_cost import ModelCost
from deploy.bench.sharing_cost import SharingCost
from deploy.bench.swap_dip import SwapDip
from updater.terminal import print_grid


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
    latency: Latency
    maps: MapsCost
    sharing: SharingCost
    swap: SwapDip


def show(console: Console, report: ThroughputReport) -> None:
    """Print the tables."""
    stock = report.stock_images_per_second, report.stock_bare_images_per_second
    rows = (
        ("release 0", report.images_per_second, report.bare_images_per_second, report.ratios),
        ("stock network", *stock, report.stock_ratios),
    )
    print_grid(
        console,
        f"images per second, medians of {len(report.ratios)} rounds",
        ("model", "topic to committed verdict", "bare loop", "ratio", "least, most"),
        [
            (
                name,
                f"{streamed:.1f}",
                f"{alone:.1f}",
                f"{statistics.median(ratios):.2f}",
                f"{min(ratios):.2f}-{max(ratios):.2f}",
            )
            for name, streamed, alone, ratios in rows
        ],
    )
    cost = report.model_cost
    title = f"processor time of the model alone, one thread, medians of {cost.pairs} pairs"
    row = {
        "release 0, an image of six crops": f"{cost.release_ms:.1f} ms",
        "ResNet18, one of 224 px": f"{cost.resnet18_ms:.1f} ms",
        "ratio": f"{cost.ratio:.2f}",
        "outer tenths": f"{cost.low:.2f}-{cost.high:.2f}",
    }
    print_grid(console, title, list(row), [list(row.values())])
    _show_latency(console, report.latency)
    _show_maps(console, report.maps)
    _show_rollout(console, report.sharing, report.swap)
    shares = ", ".join(f"{name} {share:.0%}" for name, share in report.shares.items())
    console.print(
        f"of release 0's busy seconds: {shares}; {report.overhead_ms:.1f} ms an image beyond the bare loop"
    )


def _show_latency(console: Console, latency: Latency) -> None:
    rate = f"{latency.per_second:.1f} images a second, half of the most"
    row = {
        "p50": f"{latency.p50_ms:.0f} ms",
        "p99": f"{latency.p99_ms:.0f} ms",
        "p99 of the rounds": f"{min(latency.p99s_ms):.0f}-{max(latency.p99s_ms):.0f} ms",
        "decoded and scored alone": f"{latency.alone_ms:.1f} ms",
        "p99 / alone": f"{latency.ratio:.1f}",
    }
    title = f"from produced to verdict at {rate}, {latency.items} images"
    print_grid(console, title, list(row), [list(row.values())])


def _show_maps(console: Console, cost: MapsCost) -> None:
    print_grid(
        console,
        f"what maps cost: {cost.forged} of {cost.images} pictures forged, {cost.mapped} mapped; "
        f"medians of {len(cost.ratios)} rounds",
        ("", "with maps", "without", "ratio", "least, most", "bare loop", "with maps / bare", "least, most"),
        [
            (
                "images per second",
                f"{cost.with_maps:.1f}",
                f"{cost.without:.1f}",
                f"{cost.ratio:.2f}",
                f"{min(cost.ratios):.2f}-{max(cost.ratios):.2f}",
                f"{cost.bare:.1f}",
                f"{cost.bare_ratio:.2f}",
                f"{min(cost.bare_ratios):.2f}-{max(cost.bare_ratios):.2f}",
            )
        ],
    )
    row = {
        "map": f"{cost.map_crop_ms:.2f} ms",
        "detector": f"{cost.detector_crop_ms:.2f} ms",
        "ratio": f"{cost.crop_ratio:.2f}",
        "outer tenths": f"{cost.crop_low:.2f}-{cost.crop_high:.2f}",
    }
    print_grid(console, "processor time of a crop, one thread", list(row), [list(row.values())])
    console.print(
        f"a map adds {cost.growth.mean:,.0f} bytes to a verdict, here {cost.growth.most:,} at most; "
        f"one of noise over the largest part {cost.growth.limit:,}"
    )


def _show_rollout(console: Console, sharing: SharingCost, swap: SwapDip) -> None:
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in sharing.items.items())
    rate, processor = sharing.rate, sharing.by_processor
    cells = [f"{sharing.both:.1f}", f"{sharing.alone:.1f}"]
    for cost in (rate, processor):
        cells += [f"{cost.ratio:.2f}", f"{cost.low:.2f}-{cost.high:.2f}"]
    print_grid(
        console,
        f"what a challenger costs: of {sharing.images} pictures {outcomes}; "
        f"medians of {len(rate.ratios)} rounds",
        ("images/s by both", "by the champion alone", "ratio", "95 %", "ratio by processor time", "95 %"),
        [cells],
    )
    print_grid(
        console,
        f"verdicts that are missing at {swap.per_second:.1f} images a second, medians (least, most)",
        ("", "in the worst second", "in the worst 5 seconds", "longest below nine tenths"),
        [
            (
                name,
                _spread([dip.second for dip in dips], "{:.0%}"),
                _spread([dip.five for dip in dips], "{:.0%}"),
                _spread([dip.lasts_s for dip in dips], "{:.1f} s"),
            )
            for name, dips in ((f"{len(swap.swaps)} swaps", swap.swaps), ("before each", swap.steady))
        ],
    )


def _spread(values: Sequence[float], form: str) -> str:
    """Write their median, and the least and the most."""
    middle, least, most = map(form.format, (statistics.median(values), min(values), max(values)))
    return f"{middle} ({least}, {most})"

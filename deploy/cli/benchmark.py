"""`forgewatch benchmark`: streams, newcomer and memory: what is learnt, rejected, spent."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deploy.cli.learning import Learning, setup_of, with_options, with_weights
from deploy.cli.output import print_table, progress_bar, writable
from deploy.cli.runs import HOME, Data, RunOptions, carry_out, one_line
from ingest.records import CropPlan

if TYPE_CHECKING:
    import torch

    from updater.benchmark.continual.streams import Dataset, Which
    from updater.benchmark.data.tasks import Stream
    from updater.benchmark.report.harness import Benchmark
    from updater.progress import Progress

Sequence = Annotated[str, typer.Option(help="of CDDB's layout: easy, hard, long, or NAME,NAME,… of folders")]

app = typer.Typer(
    name="benchmark",
    help="Measure learning, forgetting and the rejection of what was never trained on, task after task.",
)


@app.command()
@with_options
def cddb(chosen: Learning, data: Data = None, sequence: Sequence = "easy") -> None:
    """Learn the tasks of CDDB's layout, one forgery family after another; measure what is kept and rejected.

    A wrong name of a learner, a score, a scheme or a preset lists the right ones.
    """
    from updater.benchmark.continual.streams import Dataset

    _learn(Dataset("cddb", data, sequence, **_cut(chosen)), chosen)


@app.command()
@with_options
def opencil(
    chosen: Learning,
    data: Data = None,
    sequence: Sequence = "easy",
    base: Annotated[int, typer.Option(min=1, help="classes of the first step")] = 10,
    increment: Annotated[int, typer.Option(min=1, help="and of each step that follows")] = 10,
) -> None:
    """Learn classes in steps beside outliers: OpenCIL's layout, or CDDB's, whose later tasks are outliers."""
    from updater.benchmark.continual.streams import Dataset

    _learn(Dataset("opencil", data, sequence, base, increment, **_cut(chosen)), chosen)


@app.command()
@with_options
def faceforensics(chosen: Learning, data: Data = None) -> None:
    """Learn FaceForensics++'s methods one after another, at the rate c23."""
    _learn_layout("faceforensics", data, chosen)


@app.command()
@with_options
def deepfakebench(chosen: Learning, data: Data = None) -> None:
    """Learn the families of DeepfakeBench's lists one after another."""
    _learn_layout("deepfakebench", data, chosen)


@app.command()
@with_options
def dfdc(chosen: Learning, data: Data = None) -> None:
    """Learn the DFDC's one family; nothing is left out, for its methods were not published."""
    _learn_layout("dfdc", data, replace(chosen, leave_out=False))


def _learn_layout(name: "Which", data: Path | None, chosen: Learning) -> None:
    from updater.benchmark.continual.streams import Dataset

    _learn(Dataset(name, data, **_cut(chosen)), chosen)


@app.command()
@with_options
def synthetic(chosen: Learning) -> None:
    """Learn the own stream's families one after another; it is rendered, and needs no data."""
    from updater.benchmark.continual.streams import Dataset

    _learn(Dataset("synthetic", **_cut(chosen)), chosen)


@app.command()
@with_options
def newcomer(
    chosen: RunOptions,
    data: Data = None,
    reals: Annotated[int, typer.Option(min=10, help="reals that release 0 learns from")] = 1000,
    each: Annotated[int, typer.Option(min=20, help="and forgeries of each known family")] = 110,
    expert: Annotated[
        list[str] | None, typer.Option(help="a registered expert, or FILE of one; may be repeated")
    ] = None,
) -> None:
    """Name half of new sources' photographs real, and measure what the update makes of all else there."""
    from updater.benchmark.continual.newcomer import newcomer_benchmark
    from updater.experts.adding import experts_of
    from updater.settings import UpdaterSettings

    def made(device: "torch.device", progress: "Progress") -> "Benchmark[Any]":
        settings = UpdaterSettings().model_copy(update={"device": device.type})
        experts = experts_of(expert or (), settings.work_dir, CropPlan().crop_px)
        return newcomer_benchmark(data, HOME / "crops", settings, progress, reals, each, experts)

    carry_out(chosen, made)


@app.command()
def memory(
    items: Annotated[list[int], typer.Option(min=1, help="exemplars; may be repeated")] = [10_000, 100_000],  # noqa: B006  # typer takes its defaults so, and nothing changes them
    seed: Annotated[int, typer.Option(min=0, help="of the generated exemplars")] = 0,
    report: Annotated[Path | None, typer.Option(help="write the figures there as JSON")] = None,
    pictures: Annotated[
        Path | None,
        typer.Option(
            exists=True, file_okay=False, help="measure instead which copies of these join a group, by folder"
        ),
    ] = None,
) -> None:
    """Measure the memory's index on generated exemplars: adding, searching, saving, starting, and recall."""
    from updater.benchmark.memory_costs import costs_json, measure_all

    writable(report)
    if pictures is not None:
        _near_duplicates(pictures, report)
        return
    with one_line(), progress_bar(hidden=not sys.stderr.isatty()) as progress:
        found = list(measure_all(items, seed, progress))
    columns = (
        "exemplars",
        "of kind",
        "add, ms",
        "search, ms",
        "recall@10",
        "build, s",
        "start, s",
        "start, MB",
        "snapshot, s",
        "snapshot, MB",
        "next, s",
        "next, MB",
    )
    rows = (
        (
            f"{one.items:,}",
            one.kind,
            f"{1e3 * one.add_s:.2f}",
            f"{1e3 * one.search_s:.2f}",
            f"{one.recall:.3f}",
            f"{one.build_s:.1f}",
            f"{one.start_s:.2f}",
            f"{one.start_bytes / 1e6:.0f}",
            f"{one.snapshot_s:.2f}",
            f"{one.snapshot_bytes / 1e6:.1f}",
            f"{one.next_s:.2f}",
            f"{one.next_bytes / 1e6:.1f}",
        )
        for one in found
    )
    print_table("the memory's index", columns, rows)
    if report:
        report.write_text(costs_json(found, seed))


def _near_duplicates(folder: Path, report: Path | None) -> None:
    from updater.benchmark.near_duplicates import measure, shares_json

    with one_line(), progress_bar(hidden=not sys.stderr.isatty()) as progress:
        shares = measure(folder, progress)
    rows = [
        (name, f"{joined} of {shares.pictures}", f"{joined / max(1, shares.pictures):.3f}")
        for name, joined in shares.copies.items()
    ]
    rows.append(
        (
            "two files",
            f"{shares.joined} of {shares.pairs:,} pairs",
            f"{shares.joined / max(1, shares.pairs):.6f}",
        )
    )
    print_table(f"copies in one group ({shares.flat} too flat for a hash)", ("copy", "joined", "share"), rows)
    if report:
        report.write_text(shares_json(folder, shares))


def _cut(chosen: Learning) -> dict[str, Any]:
    return {"crop_px": chosen.crop_px, "calibration_share": chosen.calibration_share}


def _learn(source: "Dataset", chosen: Learning) -> None:
    from updater.benchmark.continual.run import stream_benchmark
    from updater.benchmark.data.crops import CropReader
    from updater.benchmark.synthetic.families import FAMILIES
    from updater.experts.look import picture_plan_of

    kinds = {name: family.kinds for name, family in FAMILIES.items()} if source.which == "synthetic" else {}

    def made(device: "torch.device", progress: "Progress") -> "Benchmark[Stream]":
        setup = with_weights(replace(setup_of(chosen), device=str(device)), chosen)
        shown = picture_plan_of(setup.experts)
        with CropReader(source.plan, HOME / "crops", progress, picture=shown) as reader:
            stream = source.read(reader)
        return stream_benchmark(
            source.which,
            stream,
            setup,
            first_seed=chosen.seed,
            kinds=kinds,
            leave_families_out=chosen.leave_out and not stream.outliers,
            frozen=HOME / "frozen",
        )

    carry_out(chosen, made)

"""`forgewatch benchmark`: streams, newcomer and memory: what is learnt, rejected, spent."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deploy.cli.learning import Learning, setup_of, with_options, with_weights
from deploy.cli.runs import HOME, Data, RunOptions, carry_out
from ingest.records import CropPlan

if TYPE_CHECKING:
    import torch

    from updater.benchmark.continual.streams import Which
    from updater.benchmark.data.tasks import Stream
    from updater.benchmark.report.harness import Benchmark
    from updater.progress import Progress

Sequence = Annotated[str, typer.Option(help="of CDDB's layout: easy, hard, long, or NAME,NAME,… of folders")]

app = typer.Typer(
    name="benchmark",
    no_args_is_help=True,
    help="Measure learning, forgetting and the rejection of what was never trained on, task after task.",
)


@app.command()
@with_options
def cddb(chosen: Learning, data: Data = None, sequence: Sequence = "easy") -> None:
    """Learn the tasks of CDDB's layout, one forgery family after another; measure what is kept and rejected.

    A wrong name of a learner, a score, a scheme or a preset lists the right ones.
    """
    _learn(chosen, "cddb", data, sequence=sequence)


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
    _learn(chosen, "opencil", data, sequence=sequence, base=base, increment=increment)


@app.command()
@with_options
def faceforensics(chosen: Learning, data: Data = None) -> None:
    """Learn FaceForensics++'s methods one after another, at the rate c23."""
    _learn(chosen, "faceforensics", data)


@app.command()
@with_options
def deepfakebench(chosen: Learning, data: Data = None) -> None:
    """Learn the families of DeepfakeBench's lists one after another."""
    _learn(chosen, "deepfakebench", data)


@app.command()
@with_options
def dfdc(chosen: Learning, data: Data = None) -> None:
    """Learn the DFDC's one family; nothing is left out, for its methods were not published."""
    _learn(replace(chosen, leave_out=False), "dfdc", data)


@app.command()
@with_options
def synthetic(chosen: Learning) -> None:
    """Learn the own stream's families one after another; it is rendered, and needs no data."""
    _learn(chosen, "synthetic")


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

    def make(device: "torch.device", progress: "Progress") -> "Benchmark[Any]":
        settings = UpdaterSettings().model_copy(update={"device": device.type})
        experts = experts_of(expert or (), settings.work_dir, CropPlan().crop_px)
        return newcomer_benchmark(data, HOME / "crops", settings, progress, reals, each, experts)

    carry_out(chosen, make)


def _learn(chosen: Learning, which: "Which", data: Path | None = None, **steps: Any) -> None:
    from updater.benchmark.continual.run import stream_benchmark
    from updater.benchmark.continual.streams import Dataset
    from updater.benchmark.data.crops import CropReader
    from updater.benchmark.synthetic.families import FAMILIES
    from updater.experts.look import picture_plan_of

    source = Dataset(which, data, **steps, crop_px=chosen.crop_px, calibration_share=chosen.calibration_share)
    kinds = {name: family.kinds for name, family in FAMILIES.items()} if which == "synthetic" else {}

    def make(device: "torch.device", progress: "Progress") -> "Benchmark[Stream]":
        setup = with_weights(replace(setup_of(chosen), device=str(device)), chosen)
        shown = picture_plan_of(setup.experts)
        with CropReader(source.plan, HOME / "crops", progress, picture=shown) as reader:
            stream = source.read(reader)
        stream = replace(stream, notes=(*stream.notes, *reader.tally.notes()))
        return stream_benchmark(
            which,
            stream,
            setup,
            first_seed=chosen.seed,
            kinds=kinds,
            leave_families_out=chosen.leave_out and not stream.outliers,
            frozen=HOME / "frozen",
        )

    carry_out(chosen, make)

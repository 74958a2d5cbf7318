"""`forgewatch benchmark`: streams, newcomer, and the protocols of ForgeryNet and DeeperForensics."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from deploy.cli.learning import Learning, setup_of, with_options, with_weights
from deploy.cli.output import UsageError, say
from deploy.cli.runs import HOME, Data, RunOptions, carry_out, one_line
from ingest.records import CropPlan

if TYPE_CHECKING:
    import torch

    from updater.benchmark.continual.streams import Which
    from updater.benchmark.data.tasks import Stream
    from updater.benchmark.report.harness import Benchmark
    from updater.progress import Progress

Sequence = Annotated[str, typer.Option(help="of CDDB's layout: easy, hard, long, or NAME,NAME,… of folders")]


@dataclass(frozen=True, kw_only=True)
class PaperOptions(RunOptions):
    """Options of the two published protocols: their media, and what a network begins with."""

    data: Data = None
    synthetic: Annotated[bool, typer.Option("--synthetic", help="on media of our own instead")] = False
    checkpoint: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="begin with own weights, safetensors")
    ] = None
    pretrained: Annotated[bool, typer.Option("--pretrained", help="begin with published ones")] = False

    def __post_init__(self) -> None:
        """Raise UsageError for options that exclude each other."""
        if (self.data is None) == (not self.synthetic):
            raise UsageError("name the folder of the data with --data, or say --synthetic, and not both")
        if self.checkpoint and self.pretrained:
            raise UsageError("--checkpoint and --pretrained are two beginnings: choose one")


app = typer.Typer(
    name="benchmark",
    no_args_is_help=True,
    help="Measure learning, forgetting and the rejection of untrained families, task after task.",
)


@app.command()
@with_options
def cddb(chosen: Learning, data: Data = None, sequence: Sequence = "easy") -> None:
    """Learn the tasks of CDDB's layout, family after family; measure accuracy, forgetting and rejection.

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
        return newcomer_benchmark(data, HOME / "crops", settings, progress, reals, each, experts, say)

    carry_out(chosen, make)


def _learn(chosen: Learning, which: "Which", data: Path | None = None, **steps: Any) -> None:
    from updater.benchmark.continual.streams import Dataset

    cut = {name: getattr(chosen, name) for name in ("crop_px", "crops", "calibration_share", "leave_out")}
    source = Dataset(which, data, **steps, **cut)
    with one_line():
        source.check()

    def make(device: "torch.device", progress: "Progress") -> "Benchmark[Stream]":
        from updater.benchmark.continual.run import stream_benchmark
        from updater.benchmark.synthetic.families import FAMILIES

        kinds = {name: family.kinds for name, family in FAMILIES.items()} if which == "synthetic" else {}
        setup = with_weights(replace(setup_of(chosen), device=str(device)), chosen)
        setup.check_weights()
        with source.open(setup, HOME / "crops", progress, say) as reader:
            stream = source.read(reader)
        stream = replace(stream, notes=(*stream.notes, *reader.tally.notes()))
        return stream_benchmark(
            which,
            stream,
            setup,
            first_seed=chosen.seed,
            kinds=kinds,
            leave_families_out=source.leave_out and not stream.outliers and reader.pixels,
            frozen=HOME / "frozen",
        )

    carry_out(chosen, make)


@app.command()
@with_options
def forgerynet(
    chosen: PaperOptions,
    task: Annotated[str, typer.Option(help="image, spatial, video or temporal")],
    classes: Annotated[int, typer.Option(help="2, 3, or 16 of images and 9 of videos")] = 2,
    protocol: Annotated[
        str, typer.Option(help="intra; or cross: trained on one group, tested on each")
    ] = "intra",
    train_on: Annotated[
        str | None,
        typer.Option(help="groups: remained, replaced, or families; NAME,NAME,… or each with cross"),
    ] = None,
    model: Annotated[str | None, typer.Option(help="the network; a wrong name lists the choices")] = None,
    input: Annotated[  # the option's name
        str | None, typer.Option(help="face (data's default) or native (our own media's)")
    ] = None,
    augmentation: Annotated[
        str | None, typer.Option(help="weak (our own media's default), normal or enhanced (data's)")
    ] = None,
    crops: Annotated[str, typer.Option(help="single, or multi: the mean over several crops")] = "single",
    px: Annotated[int | None, typer.Option(min=32, max=1024, help="side of the network's input")] = None,
    batch: Annotated[int | None, typer.Option(min=2, max=65536, help="items of a training step")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="of the training")] = None,
    rate: Annotated[float | None, typer.Option(min=1e-8, max=1e3, help="highest learning rate")] = None,
    shuffled: Annotated[int, typer.Option(min=0, help="shuffle a video in blocks of N frames; 0: all")] = 1,
    test_on: Annotated[str | None, typer.Option(help="LAYOUT=DIR, another data set to test on")] = None,
) -> None:
    """Train a network on ForgeryNet's data, or on our own in its layout, and measure one of its tasks."""
    from updater.benchmark.forgerynet.choices import TASKS, Choices, check_choices, families_of, groups_named
    from updater.benchmark.forgerynet.tree import read_other, read_tree

    if task not in TASKS:
        raise UsageError(f"--task {task} is none: choose of {', '.join(TASKS)}")
    of, synthetic, checkpoint = TASKS[task], chosen.synthetic, chosen.checkpoint
    kinds = families_of(of.medium, synthetic=synthetic)
    with one_line():
        named = (of.small_model if synthetic else of.model) if model is None else model
        usual = Choices.usual(task, named, synthetic=synthetic)
        choices = check_choices(
            replace(
                usual,
                classes=classes,
                protocol=protocol,  # type: ignore[arg-type]  # `check_choices` refuses others
                train_on=groups_named(train_on, kinds),
                input=usual.input if input is None else input,  # type: ignore[arg-type]
                augmentation=usual.augmentation if augmentation is None else augmentation,  # type: ignore[arg-type]
                crops=crops,  # type: ignore[arg-type]
                px=px,
                batch=batch,
                steps=steps,
                rate=rate,
                shuffled=shuffled,
                test_on=test_on,
                pretrained=chosen.pretrained,
                checkpoint=str(checkpoint) if checkpoint else None,
            ),
            kinds,
        )
        other = read_other(choices)
        listed = read_tree(choices, chosen.data, other) if chosen.data else None

    def make(device: "torch.device", progress: "Progress") -> "Benchmark[Any]":
        from updater.benchmark.forgerynet.run import beginning, benchmark, own_tree

        begun = beginning(choices, device, checkpoint)
        tree = listed or own_tree(choices, HOME, other, progress)
        return benchmark(begun, tree, cache=HOME / "sights", device=device, weights=checkpoint)

    carry_out(chosen, make)


@app.command()
@with_options
def deeperforensics(
    chosen: PaperOptions,
    real: Annotated[
        Path | None, typer.Option(help="FaceForensics++, whose original videos at c23 the reals are")
    ] = None,
    train: Annotated[
        str, typer.Option(help="trainings, NAME,NAME,…, each of variants joined by +, as in std+mix3")
    ] = "std,std+rand,std+mix3",
    test: Annotated[
        str, typer.Option(help="variants to test on: std, sing, rand, mix2, mix3, mix4")
    ] = "std,sing,rand,mix2,mix3,mix4",
    hidden: Annotated[Path | None, typer.Option(help="a hidden test: real and fake; else ours")] = None,
    model: Annotated[str, typer.Option(help="the model; a wrong name lists the choices")] = "forensic",
) -> None:
    """Train on DeeperForensics' variants, or on our own clips, and test on distorted ones."""
    from updater.benchmark.deeperforensics.choices import RunChoices
    from updater.benchmark.deeperforensics.tree import read, read_own

    if (real is None) == (not chosen.synthetic):
        raise UsageError("--real names FaceForensics++, whose videos are the reals beside --data")
    with one_line():
        begins = {"pretrained": chosen.pretrained, "checkpoint": chosen.checkpoint and str(chosen.checkpoint)}
        choices = RunChoices.from_names(train, test, model, synthetic=chosen.synthetic, **begins)
        tree = read(choices, chosen.data, real, hidden, HOME, say) if chosen.data and real else None

    def make(device: "torch.device", progress: "Progress") -> "Benchmark[Any]":
        from updater.benchmark.deeperforensics.models import Reading, model_of
        from updater.benchmark.deeperforensics.run import benchmark
        from updater.data.layouts.listed import Tally

        begun, model = model_of(choices, device, chosen.checkpoint)
        data = tree or read_own(choices, hidden, HOME, progress)
        reading = Reading(data.plan, HOME, progress, Tally())
        return benchmark(begun, data, model(reading), reading)

    carry_out(chosen, make)

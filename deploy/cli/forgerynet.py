"""`forgewatch benchmark forgerynet`: the tasks of ForgeryNet on its data, or on our own in its layout."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from deploy.cli.benchmark import HOME, Data, one_line
from deploy.cli.learning import device_of
from deploy.cli.output import UsageError, progress_bar, say, writable

if TYPE_CHECKING:
    from updater.benchmark.forgerynet.choices import Choices


def forgerynet(
    task: Annotated[str, typer.Option(help="image, spatial, video or temporal")],
    data: Data = None,
    synthetic: Annotated[bool, typer.Option("--synthetic", help="on media of our own instead")] = False,
    classes: Annotated[
        int, typer.Option(help="that are told apart: 2, 3, or 16 (images) and 9 (videos)")
    ] = 2,
    protocol: Annotated[
        str, typer.Option(help="intra; or cross: trained on one group, tested on each")
    ] = "intra",
    train_on: Annotated[
        str | None,
        typer.Option(help="groups: remained, replaced, or families; NAME,NAME,… or each with cross"),
    ] = None,
    model: Annotated[str | None, typer.Option(help="the network; a wrong name lists what there is")] = None,
    input: Annotated[  # the option's name
        str | None, typer.Option(help="face (data's default) or native (our own media's)")
    ] = None,
    augmentation: Annotated[
        str | None, typer.Option(help="weak (our own media's default), normal or enhanced (data's)")
    ] = None,
    crops: Annotated[str, typer.Option(help="single, or multi: what covers the whole, averaged")] = "single",
    px: Annotated[int | None, typer.Option(min=32, max=1024, help="side of what the network sees")] = None,
    batch: Annotated[int | None, typer.Option(min=2, max=65536, help="items of a training step")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="of the training")] = None,
    rate: Annotated[float | None, typer.Option(min=1e-8, max=1e3, help="highest learning rate")] = None,
    checkpoint: Annotated[Path | None, typer.Option(help="begin with own weights of the backbone")] = None,
    pretrained: Annotated[
        bool, typer.Option("--pretrained", help="begin with published weights, which are downloaded")
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="the first seed")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="how many seeds, counted on from the first")] = 1,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto")] = "auto",
    out: Annotated[Path | None, typer.Option(help="folder of the runs; what it holds is not redone")] = None,
    compare: Annotated[
        list[Path] | None, typer.Option(help="folder of other runs to put beside these; may be repeated")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="write the figures there as JSON")] = None,
) -> None:
    """Train a network on ForgeryNet's data, or on our own in its layout, and measure one of its tasks."""
    from updater.benchmark.forgerynet.choices import Choices, checked, groups_named
    from updater.benchmark.forgerynet.families import families_of
    from updater.benchmark.forgerynet.tasks import TASKS
    from updater.training.weights import read_weights

    if task not in TASKS:
        raise UsageError(f"--task {task} is none: choose of {', '.join(TASKS)}")
    if (data is None) == (not synthetic):
        raise UsageError("name the folder of ForgeryNet with --data, or say --synthetic, and not both")
    if checkpoint and pretrained:
        raise UsageError("--checkpoint and --pretrained are two beginnings: choose one")
    of = TASKS[task]
    kinds = families_of(of.medium, synthetic=synthetic)
    with one_line():
        of.check(of.model if model is None else model)
        named = (of.small_model if synthetic else of.model) if model is None else model
        usual = Choices.usual(task, named, synthetic=synthetic)
        choices = checked(
            Choices(
                task=task,
                model=named,
                synthetic=synthetic,
                classes=classes,
                protocol=protocol,  # type: ignore[arg-type]  # `checked` looks at these
                train_on=groups_named(train_on, kinds),
                input=usual.input if input is None else input,  # type: ignore[arg-type]
                augmentation=usual.augmentation if augmentation is None else augmentation,  # type: ignore[arg-type]
                crops=crops,  # type: ignore[arg-type]
                px=px,
                batch=batch,
                steps=steps,
                rate=rate,
                pretrained=pretrained,
                checkpoint=read_weights(checkpoint).digest if checkpoint else None,
            ),
            kinds,
        )
        _measure(choices, data, range(seed, seed + seeds), device, checkpoint, out, compare or [], report)


def _measure(
    choices: "Choices",
    data: Path | None,
    seeds: range,
    device: str,
    weights: Path | None,
    out: Path | None,
    others: list[Path],
    report: Path | None,
) -> None:
    from updater.benchmark.forgerynet.report import compare, show, write_reports
    from updater.benchmark.forgerynet.results import load_all
    from updater.benchmark.forgerynet.run import default_name, read, run
    from updater.benchmark.forgerynet.tasks import TASKS
    from updater.training.processes import is_first, joined

    # What cannot be read or written is told of before hours of training.
    for other in others:
        load_all(other)
    for file in ((out or HOME) / "report.json", report):
        writable(file)
    with (
        joined(device_of(device)) as own,
        progress_bar(hidden=not is_first() or not sys.stderr.isatty()) as progress,
    ):
        found = read(TASKS[choices.task].medium, data, HOME, progress)
        folder = out or HOME / default_name(choices, found)
        command = ("forgewatch", *sys.argv[1:])
        runs = list(
            run(
                choices,
                found,
                seeds,
                folder,
                cache=HOME / "sights",
                command=command,
                device=own,
                weights=weights,
                progress=progress,
            )
        )
        if not is_first():
            return
    write_reports(folder, runs, report)
    show(Console(), runs)
    if others:
        compare([folder, *others]).show(Console())
    say(f"the page of it: {folder / 'report.html'}")

"""`forgewatch benchmark deeperforensics`: what distortions cost, on DeeperForensics-1.0 or our own clips."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from deploy.cli.benchmark import HOME, Data, one_line
from deploy.cli.learning import device_of
from deploy.cli.output import UsageError, progress_bar, say, writable

if TYPE_CHECKING:
    from updater.benchmark.deeperforensics.choices import Choices


def deeperforensics(
    data: Data = None,
    real: Annotated[
        Path | None, typer.Option(help="FaceForensics++, whose original videos at c23 the reals are")
    ] = None,
    synthetic: Annotated[bool, typer.Option("--synthetic", help="on clips of our own instead")] = False,
    train: Annotated[
        str, typer.Option(help="trainings, NAME,NAME,…, each of variants joined by +, as in std+mix3")
    ] = "std,std+rand,std+mix3",
    test: Annotated[
        str, typer.Option(help="variants to test on: std, sing, rand, mix2, mix3, mix4")
    ] = "std,sing,rand,mix2,mix3,mix4",
    hidden: Annotated[
        Path | None, typer.Option(help="a hidden test: a folder with real and fake; else ours")
    ] = None,
    model: Annotated[
        str, typer.Option(help="forensic, or frames:NAME with a model of timm, on single crops")
    ] = "forensic",
    seed: Annotated[int, typer.Option(min=0, help="the first seed")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="how many seeds, counted on from the first")] = 1,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto")] = "auto",
    out: Annotated[Path | None, typer.Option(help="folder of the runs; what it holds is not redone")] = None,
    compare: Annotated[
        list[Path] | None, typer.Option(help="folder of other runs to put beside these; may be repeated")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="write the figures there as JSON")] = None,
) -> None:
    """Train on DeeperForensics' variants, or on our own clips, and test on distorted ones."""
    from updater.benchmark.deeperforensics.choices import checked

    if (data is None) == (not synthetic):
        raise UsageError("name the folder of DeeperForensics with --data, or say --synthetic, and not both")
    if (real is None) == (not synthetic):
        raise UsageError("--real names FaceForensics++, whose videos are the reals beside --data")
    with one_line():
        choices = checked(train, test, model, synthetic=synthetic)
        places = (data, real, hidden)
        _measure(choices, places, range(seed, seed + seeds), device, out, compare or [], report)


def _measure(
    choices: "Choices",
    places: tuple[Path | None, Path | None, Path | None],
    seeds: range,
    device: str,
    out: Path | None,
    others: list[Path],
    report: Path | None,
) -> None:
    from updater.benchmark.data.listed import Tally
    from updater.benchmark.deeperforensics.data import read
    from updater.benchmark.deeperforensics.media import Reading
    from updater.benchmark.deeperforensics.plots import pictures
    from updater.benchmark.deeperforensics.run import default_name, run
    from updater.benchmark.forgerynet.report import compare, show, write_reports
    from updater.benchmark.forgerynet.results import load_all
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
        found = read(choices, *places, HOME, progress)
        folder = out or HOME / default_name(choices, found)
        reading = Reading(found.plan, HOME, progress, Tally())
        command = ("forgewatch", *sys.argv[1:])
        runs = list(
            run(
                choices,
                found,
                seeds,
                folder,
                reading=reading,
                command=command,
                device=own,
                progress=progress,
            )
        )
        if not is_first():
            return
    write_reports(folder, runs, report, pictures(runs))
    show(Console(), runs)
    if others:
        compare([folder, *others]).show(Console())
    say(f"the page of it: {folder / 'report.html'}")

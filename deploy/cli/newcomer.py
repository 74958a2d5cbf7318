"""`forgewatch benchmark newcomer`: the newcomer's way gone with several seeds, and its figures as tables."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deploy.cli.benchmark import HOME, Data, one_line
from deploy.cli.output import print_table, progress_bar, writable
from updater.progress import Progress

if TYPE_CHECKING:
    from updater.benchmark.continual.newcomer_figures import Both, Figure, Figures


def newcomer(
    data: Data = None,
    seed: Annotated[int, typer.Option(min=0, help="the first seed")] = 0,
    seeds: Annotated[int, typer.Option(min=1, help="how many seeds, counted on from the first")] = 1,
    reals: Annotated[int, typer.Option(min=10, help="reals that release 0 learns from")] = 1000,
    each: Annotated[int, typer.Option(min=20, help="and forgeries of each known family")] = 110,
    out: Annotated[
        Path | None, typer.Option(help="folder of the releases; what it holds is not redone")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="write the figures there as JSON")] = None,
) -> None:
    """Name half of new sources' photographs real, and measure what the update makes of all else there."""
    writable(report)
    with one_line(), progress_bar(hidden=not sys.stderr.isatty()) as progress:
        found = figures_of(data, range(seed, seed + seeds), (reals, each), out or HOME / "newcomer", progress)
    show(found)
    if report:
        report.write_text(found.model_dump_json(indent=1) + "\n")


def figures_of(
    data: Path | None,
    seeds: range,
    own: tuple[int, int],
    folder: Path,
    progress: Progress,
) -> "Figures":
    """Go the newcomer's way once a seed; own: the library's reals, and its forgeries of each family.

    The settings are the updater's, from the environment. Raises LayoutError, also where no data is given, and
    what `load_media` raises.
    """
    from updater.benchmark.continual.newcomer import go, load_media
    from updater.benchmark.continual.newcomer_figures import figures
    from updater.benchmark.data.crops import CropReader
    from updater.benchmark.data.tasks import LayoutError
    from updater.settings import UpdaterSettings

    if data is None:
        raise LayoutError("newcomer needs the folder of its data, and there is no --data")
    with CropReader(cache=folder.parent / "crops", progress=progress) as reader:
        media = load_media(data, reader, progress, reals=own[0], each=own[1])
    return figures([go(media, seed, folder, UpdaterSettings(), progress) for seed in seeds])


def show(found: "Figures") -> None:
    """Print what both releases said of all, and of each source."""
    _table("before and after half of the new sources' photographs were named real", found.whole)
    for source, of_source in found.by_source.items():
        _table(source, of_source)


def _table(title: str, figures: "Mapping[str, Both]") -> None:
    columns = ("", "items", "before", "95 %", "after", "95 %")
    rows = (
        (
            name.replace("_", " "),
            both.after.items,
            *(cell for one in (both.before, both.after) for cell in (f"{one.mean:.3f}", _span(one))),
        )
        for name, both in figures.items()
    )
    print_table(title, columns, rows)


def _span(figure: "Figure") -> str:
    return f"{figure.low:.3f} to {figure.high:.3f}"

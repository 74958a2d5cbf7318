"""How every benchmark of the command line is run: its options, its folder, its report, its errors."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from deploy.cli.learning import Learning, device_of
from deploy.cli.output import CommandError, progress_bar, say, writable

if TYPE_CHECKING:
    import torch

    from updater.benchmark.report.harness import Benchmark
    from updater.progress import Progress

HOME = Path(".forgewatch/benchmarks")
Data = Annotated[Path | None, typer.Option(help="the folder of the data")]


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of newcomer and of the published protocols: seeds, device and output."""

    seed: Annotated[int, typer.Option(min=0, help="the first seed")] = 0
    seeds: Annotated[int, typer.Option(min=1, help="how many seeds, counted on from the first")] = 1
    device: Annotated[str, typer.Option(help="cpu, cuda or auto")] = "auto"
    out: Annotated[Path | None, typer.Option(help="folder of the runs; finished runs in it are kept")] = None
    compare: Annotated[
        list[Path] | None, typer.Option(help="folder of other runs to put beside these; may be repeated")
    ] = None
    report: Annotated[Path | None, typer.Option(help="write the figures there as JSON")] = None


def carry_out(
    chosen: RunOptions | Learning, make: "Callable[[torch.device, Progress], Benchmark[Any]]"
) -> None:
    """Run a benchmark's seeds, write its reports and show its tables.

    make: reads the data for the device of this process, and returns the benchmark.
    """
    from updater.benchmark.report.harness import run_seeds
    from updater.benchmark.report.report import show, write_reports
    from updater.benchmark.report.run_folder import load_runs
    from updater.benchmark.report.table import compare
    from updater.training.processes import is_first, join_processes

    out, others = chosen.out, chosen.compare or []
    with one_line():
        # What cannot be read or written is told of before hours of training.
        for other in others:
            load_runs(other)
        for file in ((out or HOME) / "report.json", chosen.report):
            writable(file)
        # Where nobody looks on, a bar would only leave an empty line.
        with (
            join_processes(device_of(chosen.device)) as own,
            progress_bar(hidden=not is_first() or not sys.stderr.isatty()) as progress,
        ):
            benchmark = make(own, progress)
            folder = out or HOME / benchmark.default_name
            seeds, command = range(chosen.seed, chosen.seed + chosen.seeds), ("forgewatch", *sys.argv[1:])
            runs = list(
                run_seeds(benchmark, seeds, folder, command=command, device=own.type, progress=progress)
            )
            if not is_first():
                return
        write_reports(folder, runs, chosen.report, others)
        show(Console(), runs)
        if others:
            compare([folder, *others]).show(Console())
    say(f"the page of it: {folder / 'report.html'}")


@contextmanager
def one_line() -> Iterator[None]:
    """Turn whatever can be wrong with data, options, folders and weights into one line for the person."""
    from ingest.sandbox.sandbox import SandboxUnavailableError
    from updater.data.layouts.entries import DataError
    from updater.data.stored_rows import StoredRowsError

    try:
        yield
    except (DataError, SandboxUnavailableError, StoredRowsError, ValueError) as error:
        raise CommandError(str(error)) from error
    except RuntimeError as error:
        if type(error).__name__ != "OutOfMemoryError":  # torch's, which takes seconds to load
            raise
        advice = "end its other processes, or choose a smaller --backbone or --crop-px"
        raise CommandError(f"the GPU has too little memory: {advice}") from error

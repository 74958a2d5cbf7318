"""Records with nothing but what a test is about: a benchmark's run, an expert's worth, an empty file."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from updater.benchmark.report.outcome import Outcome, Value
from updater.benchmark.report.results import Figures, Result
from updater.benchmark.report.run_folder import Run
from updater.data.layouts.entries import Listing
from updater.experts.registry import ExpertEvaluation, SourceWorth

WORTH = ExpertEvaluation(
    everywhere=SourceWorth(source="all", reals=3, fakes=4, auc=0.9, low=0.7, high=1.0),
    sources=(),
    seconds=0.1,
    detector_seconds=0.05,
)
"""an expert's that nobody measured: nothing but the lists that show it reads it"""


def make_run(
    seed: int,
    figures: Figures,
    *,
    drawn: Mapping[str, Sequence[float]] | None = None,
    options: dict[str, Any] | None = None,
    tasks: Sequence[str] = ("gaugan",),
    matrix: Sequence[Sequence[float | None]] = ((90.0,),),
    **rest: Any,
) -> Run:
    """Return a run of a stream with these figures; drawn: some of them on items drawn anew."""
    anew = drawn or {}
    return Run(
        benchmark="cddb",
        data="cddb-hard",
        data_digest="ab" * 32,
        command=("forgewatch", "benchmark", "cddb", "--data", "a folder"),
        options=options or {},
        versions={"torch": "2"},
        device="cpu",
        seed=seed,
        seconds=1.5,
        outcome=Outcome(
            figures={
                name: Value(value=value, drawn=tuple(anew.get(name, ())))
                for name, value in figures.flat().items()
            },
            tasks=tuple(tasks),
            matrix=tuple(map(tuple, matrix)),
            steps=tuple(Result(task=task, figures=Figures(aa=90), seconds={"train": 1.5}) for task in tasks),
            **rest,
        ),
    )


def values(figures: Any) -> dict[str, Value]:
    """Return a group of figures, such as an Unseen, as an outcome has them."""
    return {name: Value(value=value) for name, value in figures}


def touch(path: Path) -> Path:
    """An empty file at this path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def noted(listing: Listing, words: str) -> list[str]:
    return [note for note in listing.notes if words in note.partition(" (first: ")[0]]

"""What a task hands over: tables on the terminal, and the same as JSON, Markdown and an HTML page."""

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from ingest.durable import write_durably
from updater.benchmark.forgerynet.plots import cross_map
from updater.benchmark.forgerynet.results import Measured, load_all
from updater.benchmark.report.outcome import (
    Figure,
    nested_over_seeds,
    over_seeds,
    table_over_seeds,
)
from updater.benchmark.report.page import Picture, page
from updater.benchmark.report.table import Grid

_NOTHING = "–"
_LEAD = (
    "Shares and AUCs are of 1. acc is a mean over classes; map_ovr is what the paper calls mAP, a mean of"
    " AUCs; agree is its IoU; each family's figures are of its forgeries beside all reals."
)


def report_json(runs: Sequence[Measured]) -> str:
    """Return every figure with its mean over the seeds, its standard deviation and its number of items.

    Those of each family stand under `families`, those of the empty map under `zeros`, those of a protocol
    cross under `table`, by what was trained on and what was tested on, those of single distortions under
    `by_distortion`.
    """
    figures = {name: one.model_dump() for name, one in over_seeds([r.outcome.figures for r in runs]).items()}
    families = nested_over_seeds([run.outcome.families for run in runs])
    zeros = over_seeds([run.outcome.zeros for run in runs])
    table = table_over_seeds([run.outcome.table for run in runs])
    nested = {
        "families": _dumped(families),
        "zeros": _dumped({"": zeros}).get("", {}),
        "table": {name: _dumped(of) for name, of in table.items()},
        "by_distortion": _dumped(nested_over_seeds([run.outcome.by_distortion for run in runs])),
    }
    about = runs[0].model_dump(mode="json", exclude={"outcome", "seed", "seconds"})
    each = [
        {"seed": run.seed, "seconds": run.seconds, "about": run.outcome.about, "notes": run.outcome.notes}
        | {"figures": {name: one.value for name, one in run.outcome.figures.items()}}
        for run in runs
    ]
    whole = figures | {name: of for name, of in nested.items() if of} | about
    return (
        json.dumps(whole | {"seeds": [run.seed for run in runs], "each": each}, indent=1, allow_nan=False)
        + "\n"
    )


def grids(runs: Sequence[Measured]) -> list[Grid]:
    """Return the tables of a task's runs."""
    found = []
    mean = f"mean ± sd over {len(runs)} seed{'s' if len(runs) > 1 else ''}"
    if figures := over_seeds([run.outcome.figures for run in runs]):
        zeros = over_seeds([run.outcome.zeros for run in runs])
        empty = ("empty map",) if zeros else ()
        rows = [
            (
                name,
                *(
                    _shown(one[name]) if name in one else _NOTHING
                    for one in (figures, zeros)[: 1 + len(empty)]
                ),
                str(of.n),
            )
            for name, of in figures.items()
        ]
        found.append(Grid(mean, ("figure", "value", *empty, "items"), tuple(rows)))
    families = nested_over_seeds([run.outcome.families for run in runs])
    if families:
        head = tuple(dict.fromkeys(name for of in families.values() for name in of))
        rows = [
            (
                family,
                *(_shown(of[name]) if name in of else _NOTHING for name in head),
                str(max(one.n for one in of.values())),
            )
            for family, of in families.items()
        ]
        found.append(Grid(f"by family, {mean}", ("family", *head, "items"), tuple(rows)))
    table = table_over_seeds([run.outcome.table for run in runs])
    for name in dict.fromkeys(name for of in table.values() for cell in of.values() for name in cell):
        tested = tuple(dict.fromkeys(one for of in table.values() for one in of))
        rows = [
            (trained, *(_shown(of[one][name]) if one in of else _NOTHING for one in tested))
            for trained, of in table.items()
        ]
        found.append(
            Grid(f"{name}, trained on (rows), tested on (columns), {mean}", ("", *tested), tuple(rows))
        )
    single = nested_over_seeds([run.outcome.by_distortion for run in runs])
    if single:
        head = tuple(dict.fromkeys(name for of in single.values() for name in of))
        rows = [
            (name, *(_shown(of[one]) if one in of else _NOTHING for one in head))
            for name, of in single.items()
        ]
        found.append(Grid(f"under one distortion, {mean}", ("TYPE:LEVEL", *head), tuple(rows)))
    return found


def show(console: Console, runs: Sequence[Measured]) -> None:
    """Print the tables, and what was left out."""
    for grid in grids(runs):
        grid.show(console)
    for note in runs[0].outcome.notes:
        console.print(note, markup=False, highlight=False, soft_wrap=True)


def write_reports(
    folder: Path, runs: Sequence[Measured], report: Path | None = None, more: Sequence[Picture] = ()
) -> None:
    """Write report.json, report.md and report.html into the folder, and the JSON to `report` too.

    more: what a benchmark shows on its page beside the pictures that all have.

    Raises OSError.
    """
    figures = report_json(runs).encode()
    tables = "\n".join(f"## {grid.title}\n\n{grid.markdown()}" for grid in grids(runs))
    facts = _facts(runs)
    said = "\n".join(f"- {name}: `{value.replace('`', ' ')}`" for name, value in facts.items())
    markdown = f"# {_title(runs)}\n\n{tables}\n## To repeat it\n\n{said}\n"
    table = table_over_seeds([run.outcome.table for run in runs])
    pictures = [Picture(one.svg, one.caption) for run in runs for one in run.outcome.shown]
    if table:
        pictures += [
            Picture(cross_map(table, name), f"{name} by what was trained on (rows) and tested on (columns).")
            for name in ("auc", "acc")
        ]
    pictures += more
    html = page(_title(runs), _LEAD, grids(runs), pictures, facts)
    for path, content in (
        (folder / "report.json", figures),
        (folder / "report.md", markdown.encode()),
        (folder / "report.html", html.encode()),
    ):
        write_durably(path, content)
    if report is not None:
        write_durably(report, figures)


def compare(folders: Sequence[Path]) -> Grid:
    """Return the runs in these folders side by side, one a column; what they differ in stands on top.

    Where the data differ a row says so, since then the figures cannot be compared. Raises ResultsError.
    """
    each = [load_all(folder) for folder in folders]
    first = [runs[0] for runs in each]
    facts = {"data": [f"{run.data} {run.data_digest[:8]}" for run in first]}
    for option in dict.fromkeys(option for run in first for option in run.options):
        facts[option] = [str(run.options.get(option, _NOTHING)) for run in first]
    rows = [(name, *values) for name, values in facts.items() if len(set(values)) > 1]
    found = [over_seeds([run.outcome.figures for run in runs]) for runs in each]
    for name in dict.fromkeys(name for figures in found for name in figures):
        rows.append((name, *(_shown(of[name]) if name in of else _NOTHING for of in found)))
    rows.append(("seeds", *(str(len(runs)) for runs in each)))
    head = ("figure", *(folder.resolve().name for folder in folders))
    return Grid("mean ± sd over seeds", head, tuple(rows))


def _dumped(figures: Mapping[str, Mapping[str, Figure]]) -> dict[str, dict[str, Any]]:
    return {name: {inner: one.model_dump() for inner, one in of.items()} for name, of in figures.items()}


def _shown(figure: Figure) -> str:
    if figure.mean is None:
        return _NOTHING
    return f"{figure.mean:.3f}" + ("" if figure.sd is None else f" ± {figure.sd:.3f}")


def _title(runs: Sequence[Measured]) -> str:
    task = f" --task {runs[0].task}" if runs[0].task else ""
    return f"forgewatch benchmark {runs[0].benchmark}{task}: {runs[0].data}"


def _facts(runs: Sequence[Measured]) -> dict[str, str]:
    first = runs[0]
    return {
        "command": shlex.join(first.command),
        "seeds": ", ".join(str(run.seed) for run in runs),
        "data": f"{first.data} {first.data_digest}",
        "device": first.device,
        "seconds a run": ", ".join(f"{run.seconds:.0f}" for run in runs),
        **{
            name: json.dumps(value, sort_keys=True)
            for name, value in (
                ("options", first.options),
                ("versions", first.versions),
                ("about", first.outcome.about),
                ("left out", list(first.outcome.notes)),
            )
        },
    }

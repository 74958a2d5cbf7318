"""A seed's folder, and its files.

run.json says what was measured and how to repeat it; resampled.safetensors has figures on items drawn anew,
and scores.safetensors the scores of rejection, where there are any.
"""

import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, JsonValue, ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from ingest.durable import write_durably
from updater.benchmark.report.outcome import Outcome, Value
from updater.benchmark.report.results import Figures, RejectionScores
from updater.data.layouts.entries import DataError
from updater.training.processes import is_first

_NONE = np.zeros(0, np.float32)
RUN_FILE, SCORES_FILE, DRAWN_FILE = "run.json", "scores.safetensors", "resampled.safetensors"


class ResultsError(DataError):
    """Fatal: a run's folder cannot be read, or holds another run. One line: which, and the remedy."""


class Run(BaseModel, frozen=True, extra="forbid"):
    """One run with one seed: its options and its outcome."""

    format: Literal[2] = 2
    benchmark: str
    task: str = ""
    """of ForgeryNet's four"""
    data: str
    """its name"""
    data_digest: str
    """SHA-256 over all that the data consists of"""
    command: tuple[str, ...]
    """the command line, word by word"""
    options: dict[str, JsonValue]
    """every option in effect, the defaults too"""
    versions: dict[str, str]
    """of Python and of the packages that the figures hang on"""
    device: str
    seed: int
    seconds: float
    outcome: Outcome

    @property
    def figures(self) -> Figures:
        return Figures.of({name: value.value for name, value in self.outcome.figures.items()})


def save_run(folder: Path, run: Run) -> None:
    """Write the draws, and run.json last, so that it means done. Raises OSError."""
    drawn = {
        f"{part}/{name}": np.array(value.drawn, np.float64)
        for part, of_part in {"": run.outcome.figures, **run.outcome.families}.items()
        for name, value in of_part.items()
        if value.drawn
    }
    write_durably(folder / DRAWN_FILE, save(drawn))
    write_durably(folder / RUN_FILE, run.model_dump_json(indent=1).encode())


def load_run(folder: Path) -> Run:
    """Read a run with its draws, if those are there. Raises ResultsError."""
    path = folder / RUN_FILE
    try:
        run = Run.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ResultsError(f"{path} cannot be read ({error.strerror}): is {folder} a run?") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ResultsError(f"{path} is no run of this version: {where} {first['msg']}") from error
    drawn = _arrays(folder / DRAWN_FILE) if (folder / DRAWN_FILE).is_file() else {}

    def with_drawn(values: Mapping[str, Value], part: str = "") -> dict[str, Value]:
        of = {name: drawn.get(f"{part}/{name}", _NONE).tolist() for name in values}
        return {name: value.model_copy(update={"drawn": tuple(of[name])}) for name, value in values.items()}

    families = {part: with_drawn(values, part) for part, values in run.outcome.families.items()}
    whole = {"figures": with_drawn(run.outcome.figures), "families": families}
    return run.model_copy(update={"outcome": run.outcome.model_copy(update=whole)})


def load_runs(folder: Path) -> list[Run]:
    """Read the runs of a folder, or the run that it is itself, by seed. Raises ResultsError."""
    if (folder / RUN_FILE).is_file():
        return [load_run(folder)]
    runs = [load_run(path.parent) for path in sorted(folder.glob(f"*/{RUN_FILE}"))]
    if not runs:
        raise ResultsError(f"{folder} holds no {RUN_FILE}: name the folder of a benchmark or of one run")
    return sorted(runs, key=lambda run: run.seed)


def save_scores(folder: Path, scores: Mapping[str, RejectionScores]) -> None:
    """Write a run's scores of rejection, by names such as a step's, without "/". Raises OSError."""
    arrays = {f"{name}/{field}": array for name, own in scores.items() for field, array in vars(own).items()}
    contiguous = {name: np.ascontiguousarray(array, np.float32) for name, array in arrays.items()}
    write_durably(folder / SCORES_FILE, save(contiguous))


def load_scores(folder: Path) -> dict[str, RejectionScores]:
    """Read a run's scores of rejection; none where it has no file of them. Raises ResultsError."""
    path = folder / SCORES_FILE
    if not path.is_file():
        return {}
    fields: dict[str, dict[str, NDArray[np.float32]]] = {}
    for key, array in _arrays(path).items():
        name, _, field = key.rpartition("/")
        fields.setdefault(name, {})[field] = array
    try:
        return {name: RejectionScores(**of_name) for name, of_name in sorted(fields.items())}
    except TypeError as error:
        raise ResultsError(f"{path} holds no scores of this version: {error}") from error


def _arrays(path: Path) -> dict[str, NDArray[np.float32]]:
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise ResultsError(f"{path} cannot be read: {error}") from error


@contextmanager
def timing(file: Path) -> Iterator[None]:
    """Add the seconds that the block takes to those in the file, however the block ends. Raises OSError."""
    before, began = seconds_in(file), time.perf_counter()
    try:
        yield
    finally:
        if is_first():
            write_durably(file, json.dumps({"training": before + time.perf_counter() - began}).encode())


def seconds_in(file: Path) -> float:
    """Return the seconds that the file has, 0 where there is none."""
    return float(json.loads(file.read_bytes())["training"]) if file.is_file() else 0.0

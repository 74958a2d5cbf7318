"""A run is a folder: run.json says what was measured and how to repeat it.

Beside it scores.safetensors has the scores of rejection, and resampled.safetensors figures on images drawn
anew.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from ingest.durable import write_durably
from updater.benchmark.report.results import RejectionScores, Run

RUN_FILE, SCORES_FILE, RESAMPLED_FILE = "run.json", "scores.safetensors", "resampled.safetensors"


class ResultsError(Exception):
    """Fatal: a run's folder cannot be read. One line: which, and what is wrong with it."""


def save_run(folder: Path, run: Run, scores: Mapping[str, RejectionScores]) -> None:
    """Write all three files, each whole or not at all; run.json last, so it means done.

    scores: by a name such as a step's or a left-out family's, without "/". Raises OSError.
    """
    arrays = {f"{name}/{field}": array for name, one in scores.items() for field, array in vars(one).items()}
    contiguous = {name: np.ascontiguousarray(array, np.float32) for name, array in arrays.items()}
    write_durably(folder / SCORES_FILE, save(contiguous))
    drawn = {name: np.array(values, np.float64) for name, values in run.resampled.items()}
    write_durably(folder / RESAMPLED_FILE, save(drawn))
    write_durably(folder / RUN_FILE, run.model_dump_json(indent=1).encode())


def load_run(folder: Path) -> Run:
    """Read run.json of a run's folder, and what was drawn again if that is there. Raises ResultsError."""
    path, drawn = folder / RUN_FILE, folder / RESAMPLED_FILE
    try:
        run = Run.model_validate_json(path.read_bytes())
        resampled = load_file(drawn) if drawn.is_file() else {}
        return run.model_copy(
            update={"resampled": {name: tuple(values.tolist()) for name, values in sorted(resampled.items())}}
        )
    except OSError as error:
        raise ResultsError(f"{path} cannot be read ({error.strerror}): is {folder} a run?") from error
    except SafetensorError as error:
        raise ResultsError(f"{drawn} cannot be read: {error}") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ResultsError(f"{path} is no run of this version: {where} {first['msg']}") from error


def load_scores(folder: Path) -> dict[str, RejectionScores]:
    """Read scores.safetensors of a run's folder, by the names that save_run got. Raises ResultsError."""
    path = folder / SCORES_FILE
    try:
        arrays = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ResultsError(f"{path} cannot be read: {error}") from error
    found: dict[str, dict[str, NDArray[np.float32]]] = {}
    for key, array in arrays.items():
        name, _, field = key.rpartition("/")
        found.setdefault(name, {})[field] = array
    try:
        return {name: RejectionScores(**fields) for name, fields in sorted(found.items())}
    except TypeError as error:
        raise ResultsError(f"{path} holds no scores of this version: {error}") from error


def load_runs(folder: Path) -> tuple[list[Run], list[dict[str, RejectionScores]]]:
    """Read a benchmark's runs and their scores, by seed: the folder's own, or those of the folders in it.

    Raises ResultsError.
    """
    folders = [folder] if (folder / RUN_FILE).is_file() else [p.parent for p in folder.glob(f"*/{RUN_FILE}")]
    if not folders:
        raise ResultsError(f"{folder} holds no {RUN_FILE}: name the folder of a benchmark or of one run")
    both = sorted(((load_run(one), one) for one in folders), key=lambda pair: (pair[0].seed, pair[1].name))
    return [run for run, _ in both], [load_scores(one) for _, one in both]

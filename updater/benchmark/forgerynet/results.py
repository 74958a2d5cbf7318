"""A run of one seed as a file, and what it has to agree with to be taken up again."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, JsonValue, ValidationError

from updater.benchmark.data.entries import Entry
from updater.benchmark.report.outcome import Outcome
from updater.benchmark.report.run_folder import RUN_FILE, ResultsError


class Measured(BaseModel):
    """What one seed gave, and all that it follows from."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    benchmark: str
    task: str
    data: str
    """the listing's name"""
    data_digest: str
    """SHA-256 over what the listing says of each file"""
    command: tuple[str, ...]
    options: dict[str, JsonValue]
    versions: dict[str, str]
    device: str
    seed: int
    seconds: float
    outcome: Outcome


def load_measured(folder: Path) -> Measured:
    """Read a seed's folder. Raises ResultsError."""
    path = folder / RUN_FILE
    try:
        return Measured.model_validate_json(path.read_bytes())
    except OSError as error:
        raise ResultsError(f"{path} cannot be read ({error.strerror}): is {folder} a run?") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ResultsError(f"{path} is no run of this benchmark: {where} {first['msg']}") from error


def load_all(folder: Path) -> list[Measured]:
    """Read the runs of a folder, or the run that it is itself, by seed. Raises ResultsError."""
    found = [folder] if (folder / RUN_FILE).is_file() else [p.parent for p in folder.glob(f"*/{RUN_FILE}")]
    if not found:
        raise ResultsError(f"{folder} holds no {RUN_FILE}: name the folder of a benchmark or of one run")
    return sorted(map(load_measured, found), key=lambda one: one.seed)


def digest_of(entries: Sequence[Entry], root: Path) -> str:
    """Return the SHA-256 over each file's place below the root, size, label and what else is said of it."""
    total = hashlib.sha256()
    for one in entries:
        place = one.path.relative_to(root) if one.path.is_relative_to(root) else one.path
        facts = (str(place), one.path.stat().st_size, one.family, one.split, one.segments, one.annotated)
        total.update(repr(facts).encode() + b"\n")
    return total.hexdigest()

"""What frozen models make of pictures: float16 rows, each computed once ever.

A row follows from a picture's pixels and the model, and from nothing else. So it is kept under the digests of
both, in a folder for each model, by the file some hundreds of rows: all of a file is there or nothing. The
folder may be removed at any time, at the price of computing it anew.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import structlog
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ingest.durable import write_durably
from updater.data.stored_rows import StoredRows
from updater.progress import Steps, uncounted
from updater.training.processes import is_first
from updater.training.weights import WeightsError

_FORMAT = "frozen-1"
_ROWS_A_FILE = 256
"""few enough that an interrupted run computes little again, enough to be few files"""

log = structlog.get_logger()


@dataclass(frozen=True)
class FrozenModel:
    """A model that stays as it is."""

    digest: str
    """SHA-256, hexadecimal, of all that a row follows from but the picture"""
    width: int
    """B"""
    name: str
    weights: str
    """whose they are, one line"""
    rows: Callable[[NDArray[np.uint8], Steps], NDArray[np.float32]]
    """makes float32 [n, B] of pictures, uint8 [n, S, S, 3]"""


def kept_rows(
    model: FrozenModel,
    pictures: NDArray[np.uint8] | StoredRows,
    kept: Path | None = None,
    progress: Steps = uncounted,
) -> NDArray[np.float32]:
    """Return what a model makes of pictures, uint8 [n, S, S, 3] → float32 [n, B].

    They are rounded to float16, kept or not, so that both are the same. kept: the folder of what was computed
    before; None for nowhere. Raises WeightsError where a model gives what no float16 holds, and OSError.
    """
    found = dict[bytes, NDArray[np.float16]]()
    every: list[bytes] = []
    places = {} if kept is None else _places(kept / model.digest[:16])
    for first in range(0, len(pictures), _ROWS_A_FILE):
        some = pictures[first : first + _ROWS_A_FILE]
        keys = [hashlib.sha256(np.ascontiguousarray(one).data).digest() for one in some]
        every += keys
        lacking = set(keys) - found.keys()
        found |= _read({places[key] for key in lacking if key in places}, model.digest, lacking)
        missing = list({key: at for at, key in enumerate(keys) if key not in found}.values())
        before = len(every) - len(missing)

        def say(done: int, _: int, before: int = before) -> None:
            progress(before + done, len(pictures))

        if missing:
            rows = _rounded(model.rows(some[missing], say), model)
            of = [keys[at] for at in missing]
            found |= dict(zip(of, rows, strict=True))
            if kept is not None and is_first():
                _write(kept / model.digest[:16], model.digest, of, rows)
        progress(len(every), len(pictures))
    return np.array([found[key] for key in every], np.float32).reshape(len(every), model.width)


def _rounded(rows: NDArray[np.float32], model: FrozenModel) -> NDArray[np.float16]:
    with np.errstate(over="ignore"):
        rounded = rows.astype(np.float16)
    if not np.isfinite(rounded).all():
        raise WeightsError(
            f"{model.name} gives numbers that are none or beyond 65504 with weights of"
            f" {model.weights}: take other weights, or another model"
        )
    return rounded


def _write(folder: Path, model: str, keys: list[bytes], rows: NDArray[np.float16]) -> None:
    named = np.frombuffer(b"".join(keys), np.uint8).reshape(len(keys), -1)
    # One entry: safetensors writes several in no fixed order.
    metadata = {"frozen": " ".join([_FORMAT, model, _checksum(named, rows)])}
    path = folder / f"{hashlib.sha256(named.data).hexdigest()[:32]}.safetensors"
    write_durably(path, save({"keys": named, "rows": np.ascontiguousarray(rows)}, metadata))


def _places(folder: Path) -> dict[bytes, Path]:
    """Return in which file each row lies, by its picture's digest; a damaged file counts as absent."""
    places: dict[bytes, Path] = {}
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, "numpy") as file:
                places |= {key.tobytes(): path for key in file.get_tensor("keys")}
        except (OSError, SafetensorError):
            log.warning("frozen outputs computed anew", file=str(path), reason="damaged")
    return places


def _read(paths: set[Path], model: str, wanted: set[bytes]) -> dict[bytes, NDArray[np.float16]]:
    """Return the rows that are there; a file that is damaged or of another model counts as absent."""
    found: dict[bytes, NDArray[np.float16]] = {}
    for path in sorted(paths):
        try:
            with safe_open(path, "numpy") as file:
                metadata = file.metadata() or {}
                named, rows = file.get_tensor("keys"), file.get_tensor("rows")
                keys = [key.tobytes() for key in named]
        except (OSError, SafetensorError):
            metadata, keys = {}, []
        if not keys or metadata.get("frozen") != " ".join([_FORMAT, model, _checksum(named, rows)]):
            log.warning("frozen outputs computed anew", file=str(path), reason="damaged, or of another model")
            continue
        found |= {key: row for key, row in zip(keys, rows, strict=True) if key in wanted}
    return found


def _checksum(keys: NDArray[np.uint8], rows: NDArray[np.float16]) -> str:
    total = hashlib.sha256(np.ascontiguousarray(keys).data)
    total.update(np.ascontiguousarray(rows).data)
    return total.hexdigest()

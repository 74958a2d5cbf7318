"""Decoded crops on disk, so that media is made and decoded once."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from ingest.durable import write_durably
from ingest.records import CropPlan
from updater.benchmark.data.tasks import DataError

_FORMAT = "1"


class CacheError(DataError):
    """The folder of the cache cannot be written."""


@dataclass(frozen=True)
class Piece:
    """Crops of n media and what follows from their bytes."""

    digests: tuple[str, ...]
    """length n: SHA-256 of each medium, hexadecimal"""
    groups: tuple[str, ...]
    """length n"""
    crops: NDArray[np.uint8]
    """[T, S, S, 3], RGB"""
    starts: NDArray[np.int64]
    """[n + 1]: rows starts[i]:starts[i + 1] of crops are medium i's"""


def identity(plan: CropPlan, media: Sequence[str]) -> str:
    """Return the SHA-256 of everything that a piece follows from: the plan, and what names its media."""
    parts = [_FORMAT, plan.model_dump(mode="json"), list(media)]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def fetch(folder: Path | None, key: str, make: Callable[[], Piece]) -> Piece:
    """Return the piece of this identity from the folder, or make it and put it there.

    What is damaged counts as absent. Without a folder every piece is made. Raises what make raises, and
    CacheError.
    """
    if folder is None:
        return make()
    path = folder / f"{key}.safetensors"
    found = _read(path)
    if found is None:
        found = make()
        try:
            write_durably(path, _written(found))
        except OSError as error:
            raise CacheError(f"{folder} cannot be written ({error.strerror}): make room there") from error
    return found


def _written(piece: Piece) -> bytes:
    about = {
        "digests": piece.digests,
        "groups": piece.groups,
        "sha256": _checksum(piece.crops, piece.starts),
    }
    # One entry: safetensors writes several in no fixed order, and equal pieces are to be equal files.
    metadata = {"piece": json.dumps(about)}
    return save({"crops": np.ascontiguousarray(piece.crops), "starts": piece.starts}, metadata)


def _read(path: Path) -> Piece | None:
    try:
        with safe_open(path, "numpy") as file:
            about = json.loads((file.metadata() or {})["piece"])
            crops, starts = file.get_tensor("crops"), file.get_tensor("starts")
        # safetensors has no checksum of its own, and a flipped bit in a crop would teach something.
        if about["sha256"] != _checksum(crops, starts):
            return None
        return Piece(tuple(about["digests"]), tuple(about["groups"]), crops, starts)
    except (OSError, SafetensorError, KeyError, json.JSONDecodeError):
        return None


def _checksum(crops: NDArray[np.uint8], starts: NDArray[np.int64]) -> str:
    total = hashlib.sha256(np.ascontiguousarray(crops).data)
    total.update(np.ascontiguousarray(starts).data)
    return total.hexdigest()

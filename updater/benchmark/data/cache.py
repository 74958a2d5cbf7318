"""Decoded crops or their forensic features on disk, so that media is made and decoded once."""

import fcntl
import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save

from ingest.durable import make_folder, write_durably
from ingest.records import CropPlan, PicturePlan
from updater.data.layouts.entries import DataError
from updater.data.stored_rows import StoredRows, read_shard

_FORMAT = "3"
_ROWS = ("crops", "pictures", "features")  # of a piece, those that may lie on disk

T = TypeVar("T")


class CacheError(DataError):
    """The folder of the cache cannot be read or written."""


@dataclass(frozen=True)
class Piece:
    """Crops of n media and facts of their bytes, each of length n.

    digests: SHA-256 of each medium, hexadecimal. crops: [T, S, S, 3], uint8, RGB; on disk where there is a
    cache. starts: [n + 1], rows starts[i]:starts[i + 1] of crops are medium i's; one without a picture has
    none. hashes: those of `ingest.picture_hash`, hexadecimal. pictures: [n, S', S', 3], uint8, RGB: each
    medium whole, a video by its first frame, where a plan asks for it. features: [T, F], float32, the raw
    forensic ones of each crop, where they stand for the pixels: crops is then [T, S, 0, 3].
    """

    digests: tuple[str, ...]
    groups: tuple[str, ...]
    crops: NDArray[np.uint8] | StoredRows
    starts: NDArray[np.int64]
    hashes: tuple[str, ...]
    pictures: NDArray[np.uint8] | StoredRows | None = None
    features: NDArray[np.float32] | StoredRows | None = None


def identity(plan: CropPlan, picture: PicturePlan | None, media: Sequence[str], form: str = "") -> str:
    """Return the SHA-256 of a piece's inputs: plans, names of media, and what is kept instead of crops."""
    parts: list[object] = [_FORMAT + form, plan.model_dump(mode="json"), list(media)]
    if picture is not None:
        parts.append(picture.model_dump(mode="json"))
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def room(what: str, needed: int, memory: float, folder: Path | None) -> str:
    """Say what a run takes: bytes of a folder, whose disk has so many left, and GB of memory."""
    whole = (folder or Path(tempfile.gettempdir())).absolute()
    free = shutil.disk_usage(next(path for path in (whole, *whole.parents) if path.exists())).free
    disk = f"{needed / 1e9:.2f} of {free / 1e9:.0f} GB free in {folder or whole}"
    return f"{what}: {disk}, and about {memory:.1f} GB of memory"


def fetch(folder: Path | None, key: str, make: Callable[[], Piece], *, wait: bool = True) -> Piece | None:
    """Return the piece of this identity from the folder, or make it and put it there.

    What is damaged counts as absent. Without a folder every piece is made. None where another process makes
    it just now, unless told to wait. Raises what make raises, and CacheError.
    """
    if folder is None:
        return make()
    path = folder / f"{key}.safetensors"
    return made_once(path, lambda: _read(path), lambda: _encode_piece(make()), wait=wait)


def made_once(
    path: Path, read: Callable[[], T | None], written: Callable[[], bytes], *, wait: bool
) -> T | None:
    """Return the value that `read` reads at a path; if there is none, write it there first.

    Of several processes that lack it one makes it, and the others wait or, not told to, get None. Raises what
    the two raise, and CacheError.
    """
    try:
        if (piece := read()) is not None:
            return piece
        make_folder(path.parent)
        with _alone(path, wait=wait) as alone:
            if not alone:
                return None
            if (piece := read()) is None:
                write_durably(path, written())
                piece = read()
    except OSError as error:
        raise CacheError(f"{path} cannot be used ({error.strerror}): make room there, or mend it") from error
    if piece is None:
        raise CacheError(f"{path} does not hold what was written to it: look after its disk")
    return piece


@contextmanager
def _alone(path: Path, *, wait: bool) -> Iterator[bool]:
    """Keep other processes from making the same; yield whether none does. A killed process keeps no lock."""
    with path.parent.with_name(f"{path.parent.name}.lock").open("a") as file:
        try:
            # One byte a file, so that one lock file serves all.
            place = int(hashlib.sha256(path.name.encode()).hexdigest()[:12], 16)
            fcntl.lockf(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB), 1, place)
        except BlockingIOError:
            yield False
            return
        yield True


def _encode_piece(piece: Piece) -> bytes:
    rows = {name: getattr(piece, name) for name in _ROWS}
    arrays = {name: np.ascontiguousarray(of[:]) for name, of in rows.items() if of is not None}
    about = {name: getattr(piece, name) for name in ("digests", "groups", "hashes")}
    sums = {name: hashlib.sha256(array.data).hexdigest() for name, array in arrays.items()}
    # One entry: safetensors writes several in no fixed order, and equal pieces are to be equal files.
    return save(arrays, {"piece": json.dumps(about | {"starts": piece.starts.tolist(), "sha256": sums})})


def _read(path: Path) -> Piece | None:
    """Return a piece, checked, of which only the place of crops and pictures is kept in memory."""
    if (shard := read_shard(path, "crops")) is None:
        return None
    try:
        facts = json.loads(shard[1]["piece"])
        starts, rows = np.array(facts["starts"], np.int64), {}
        for name, digest in facts["sha256"].items():
            # safetensors has no checksum of its own, and a flipped bit in a crop would teach something.
            own = shard if name == "crops" else read_shard(path, name)
            if own is None or own[0].digest != digest:
                return None
            rows[name] = StoredRows([own[0]])
        if starts[-1] != shard[0].count:
            return None
        digests, groups, hashes = (tuple(facts[name]) for name in ("digests", "groups", "hashes"))
        return Piece(digests, groups, rows["crops"], starts, hashes, *map(rows.get, _ROWS[1:]))
    except (KeyError, json.JSONDecodeError):
        return None

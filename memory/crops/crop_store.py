"""Crops on disk or in an object store: one safetensors file each, named by the SHA-256 of its bytes.

Where a release looks at whole pictures, the file also holds the item's picture, at the size that the model
takes: a later update learns from it, and it goes when the crops go. So it is with one crop a frame of a
real video, from which a later update's scanner learns.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from memory.crops.object_store import AT_ONCE, ObjectStore
from memory.store import ExemplarMemoryError

_SUFFIX = ".safetensors"
SHARDS = tuple(f"{number:02x}" for number in range(256))
"""The first two digits of a digest: crops lie in a folder for each."""

Pixels = NDArray[np.uint8]
_Given = TypeVar("_Given")
_Made = TypeVar("_Made")


class CropsUnavailableError(ExemplarMemoryError):
    """Retryable: the place where the crops lie cannot be read or written."""


class CropsMissingError(ExemplarMemoryError):
    """Fatal for the item: no such crops are stored."""


class CropsDamagedError(ExemplarMemoryError):
    """Fatal for the item: the stored bytes differ from those written."""


class Views(NamedTuple):
    """The stored views of an item: crops, uint8 RGB (N, S, S, 3), and for some its picture or frames."""

    crops: NDArray[np.uint8]
    picture: NDArray[np.uint8] | None = None
    """(H, W, 3): all of it"""
    scan: bytes | None = None
    """one crop of each of some frames of a video, (T, S, S, 3), as `scans.encode_frames` has them"""


class CropStore:
    """Crops by digest, in a folder or below any URL that fsspec knows. The same crops lie there once."""

    def __init__(self, url: str) -> None:
        self._objects = ObjectStore(url)

    def put(self, crops: Pixels, picture: Pixels | None = None, scan: bytes | None = None) -> str:
        """Store crops, a picture and frames, as `Views` has them; return the digest of all.

        On return they survive a power cut. Raises CropsUnavailableError.
        """
        packed = None if scan is None else np.frombuffer(scan, np.uint8)
        arrays = {"crops": crops, "picture": picture, "scan": packed}
        value = save({name: np.ascontiguousarray(a) for name, a in arrays.items() if a is not None})
        digest = hashlib.sha256(value).hexdigest()
        with _failing("write crops"):
            name = _name(digest)
            if not self._objects.holds(name):
                self._objects.write(name, value)
            else:
                self._objects.settle(name)  # Whoever wrote them may not have come that far.
        return digest

    def put_all(self, items: Sequence[Views]) -> list[str]:
        """Store the views of items as `put` does, some at once. Raises CropsUnavailableError."""
        return _at_once(lambda views: self.put(*views), items)

    def holds(self, digest: str) -> bool:
        """Say whether crops are stored. Raises CropsUnavailableError."""
        with _failing("look for crops"):
            return self._objects.holds(_name(digest))

    def missing(self, digests: Sequence[str]) -> set[str]:
        """Return those that are not stored. Raises CropsUnavailableError."""
        held = _at_once(self.holds, digests)
        return {digest for digest, there in zip(digests, held, strict=True) if not there}

    def load(self, digest: str) -> NDArray[np.uint8]:
        return self.load_views(digest).crops

    def load_views(self, digest: str) -> Views:
        """Return all that is stored of an item, after comparing its digest.

        Raises CropsMissingError, CropsDamagedError or CropsUnavailableError.
        """
        with _failing("read crops"):
            try:
                value = self._objects.read(_name(digest))
            except FileNotFoundError as error:
                self._objects.require_there()  # without its bucket, nothing is known to be missing
                raise CropsMissingError(f"there are no crops {digest}") from error
        if hashlib.sha256(value).hexdigest() != digest:
            raise CropsDamagedError(f"the crops {digest} are damaged")
        try:
            arrays = load(value)
            scan = arrays.get("scan")
            return Views(arrays["crops"], arrays.get("picture"), None if scan is None else scan.tobytes())
        except (SafetensorError, KeyError) as error:
            raise CropsDamagedError(f"{digest} holds no crops: {error}") from error

    def delete(self, digest: str) -> None:
        """Remove crops, if they are there. Raises CropsUnavailableError."""
        with _failing("delete crops"):
            self._objects.delete(_name(digest))

    def delete_all(self, digests: Iterable[str]) -> None:
        """Remove crops as `delete` does, some at once. Raises CropsUnavailableError."""
        _at_once(self.delete, list(digests))

    def digests(self, shards: Iterable[str] = SHARDS) -> Iterator[str]:
        """Yield the digest of everything stored in some of SHARDS. Raises CropsUnavailableError."""
        for shard in shards:
            with _failing("list crops"):
                names = self._objects.names(shard)
            for name in names:
                digest = name.rsplit("/", 1)[-1]
                if digest.endswith(_SUFFIX):
                    yield digest.removesuffix(_SUFFIX)

    def hindrance(self) -> str | None:
        """Give in one line why no crops can be stored or read now; None: they can."""
        problem = self._objects.hindrance()
        return f"no crops can be stored: {problem}" if problem else None


@contextmanager
def _failing(doing: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CropsUnavailableError(f"cannot {doing}: {error}") from error


def _at_once(do: Callable[[_Given], _Made], given: Sequence[_Given]) -> list[_Made]:
    """Do something with each, some at once: on an object store each waits for an answer of its own."""
    if len(given) < 2:
        return [do(digest) for digest in given]
    with ThreadPoolExecutor(min(AT_ONCE, len(given))) as pool:
        return list(pool.map(do, given))


def _name(digest: str) -> str:
    return f"{digest[:2]}/{digest}{_SUFFIX}"

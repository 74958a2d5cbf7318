"""Crops on disk or in an object store: one safetensors file each, named by the SHA-256 of its bytes."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import get_protocol
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from ingest.durable import sync, write_durably
from memory.store import ExemplarMemoryError

_SUFFIX = ".safetensors"


class CropsUnavailableError(ExemplarMemoryError):
    """Retryable: the place where the crops lie cannot be read or written."""


class CropsMissingError(ExemplarMemoryError):
    """Fatal for the item: no such crops are stored."""


class CropsDamagedError(ExemplarMemoryError):
    """Fatal for the item: what is stored is not what was written."""


def local_folder(url: str) -> Path | None:
    """Return the folder of this host that fsspec takes the URL for; None where it is none."""
    files: Any = fsspec.get_filesystem_class(get_protocol(url))
    return Path(files._strip_protocol(url)) if issubclass(files, LocalFileSystem) else None


class CropStore:
    """Crops by digest, in a folder or below any URL that fsspec knows. The same crops lie there once."""

    def __init__(self, url: str) -> None:
        self._files, root = fsspec.core.url_to_fs(url)
        self._root = str(root).rstrip("/")
        self._local = isinstance(self._files, LocalFileSystem)

    def put(self, crops: NDArray[np.uint8]) -> str:
        """Store crops, uint8 RGB (N, S, S, 3); return their digest. On return they survive a power cut.

        Raises CropsUnavailableError.
        """
        value = save({"crops": np.ascontiguousarray(crops)})
        digest = hashlib.sha256(value).hexdigest()
        try:
            path = self._path(digest)
            if not self.holds(digest):
                if self._local:
                    write_durably(Path(path), value)
                else:
                    self._files.pipe_file(path, value)
            elif self._local:
                sync(Path(path).parent)  # Whoever wrote them may not have come that far.
        except OSError as error:
            raise CropsUnavailableError(f"cannot write crops: {error}") from error
        return digest

    def holds(self, digest: str) -> bool:
        """Say whether crops are stored. Raises CropsUnavailableError."""
        try:
            return bool(self._files.exists(self._path(digest)))
        except OSError as error:
            raise CropsUnavailableError(f"cannot look for crops: {error}") from error

    def load(self, digest: str) -> NDArray[np.uint8]:
        """Return crops, uint8 RGB (N, S, S, 3), after comparing them with their digest.

        Raises CropsMissingError, CropsDamagedError or CropsUnavailableError.
        """
        try:
            value: bytes = self._files.cat_file(self._path(digest))
        except FileNotFoundError as error:
            raise CropsMissingError(f"there are no crops {digest}") from error
        except OSError as error:
            raise CropsUnavailableError(f"cannot read crops: {error}") from error
        if hashlib.sha256(value).hexdigest() != digest:
            raise CropsDamagedError(f"the crops {digest} are damaged")
        try:
            crops: NDArray[np.uint8] = load(value)["crops"]
        except (SafetensorError, KeyError) as error:
            raise CropsDamagedError(f"{digest} holds no crops: {error}") from error
        return crops

    def delete(self, digest: str) -> None:
        """Remove crops, if they are there. Raises CropsUnavailableError."""
        try:
            self._files.rm_file(self._path(digest))
        except FileNotFoundError:
            return
        except OSError as error:
            raise CropsUnavailableError(f"cannot delete crops: {error}") from error

    def digests(self) -> Iterator[str]:
        """Yield the digest of everything stored."""
        for path in self._files.find(self._root):
            name = path.rsplit("/", 1)[-1]
            if name.endswith(_SUFFIX):
                yield name.removesuffix(_SUFFIX)

    def _path(self, digest: str) -> str:
        return f"{self._root}/{digest[:2]}/{digest}{_SUFFIX}"

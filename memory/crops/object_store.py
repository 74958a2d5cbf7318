"""Opens the place where any room keeps files: a folder, or an object store by its URL.

Every call ends within a bounded time, and each failure is an OSError of one line. What S3 needs beside the
URL comes from the usual variables alone: AWS_ENDPOINT_URL, AWS_REGION, AWS_ACCESS_KEY_ID,
AWS_SECRET_ACCESS_KEY, and whatever else botocore reads.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import get_protocol

from ingest.durable import file_aside, sync, write_durably
from ingest.process.frame import WrongSettingError
from ingest.process.health import existing

CALL_S = 30.0
"""The longest that one request may take with all its tries, seconds."""

_LEAST_BYTES_S = 2**20
"""A file may take as much longer as it takes at this rate, bytes a second."""

_PART_BYTES = 2**24
_LOOK_S = 3.0
AT_ONCE = 16
"""So many requests at most are under way to one store."""

_S3 = ("s3", "s3a")


def require_files(setting: str, url: str) -> None:
    """Raise WrongSettingError, with the setting's name, where `ObjectStore` takes no such URL.

    The URL is not told: a secret may be in it.
    """
    protocol = get_protocol(url)
    try:
        fsspec.get_filesystem_class(protocol)
    except ImportError as error:
        raise WrongSettingError(setting, f"what reads {protocol}:// is not installed: {error}") from error
    except ValueError:
        raise WrongSettingError(setting, "it is no folder, and no kind of URL that is known here") from None
    # No bucket's name has a colon or an @: what has is a key with its secret, which the environment gives.
    if local_folder(url) is None and set(url.partition("://")[2].split("/")[0] or "@") & set(":@?#"):
        raise WrongSettingError(setting, "the bucket is missing: s3://BUCKET/PREFIX, keys by AWS_…")


def local_folder(url: str) -> Path | None:
    """The folder that a URL names, None where it names an object store."""
    if get_protocol(url) not in ("file", "local"):
        return None
    return Path(LocalFileSystem._strip_protocol(url))


@dataclass(frozen=True)
class ObjectInfo:
    """An object of a listing: its name below the store's root, and when it was written last."""

    name: str
    modified: datetime


class ObjectStore:
    """Objects by name below a folder or a URL that fsspec knows. For any number of threads."""

    def __init__(self, url: str) -> None:
        """Nothing is asked yet. Raises ValueError or ImportError where `require_files` would refuse."""
        self._on_s3 = get_protocol(url) in _S3
        self._files, root = fsspec.core.url_to_fs(url, **(_s3_options() if self._on_s3 else {}))
        self._root = str(root).rstrip("/")
        self._folder = isinstance(self._files, LocalFileSystem)
        if self._on_s3:
            self._files.retries = 2
        self._failures = _failures(on_s3=self._on_s3)

    def write(self, name: str, value: bytes) -> None:
        """Write an object, whole or not at all; on return it survives a power cut. Raises OSError."""
        with self._translate_errors():
            if self._folder:
                write_durably(Path(self._path(name)), value)
            else:
                self._files.pipe_file(self._path(name), value, **self._within(len(value)))

    def settle(self, name: str) -> None:
        """See to it that an object which is there survives a power cut. Raises OSError."""
        if self._folder:
            sync(Path(self._path(name)).parent)

    def upload(self, path: Path, name: str) -> None:
        """Write a file's bytes as `write` does, in several parts where they are many. Raises OSError."""
        with self._translate_errors():
            if self._folder:
                with file_aside(Path(self._path(name))) as aside:
                    shutil.copyfile(path, aside)
            else:
                within = self._within(path.stat().st_size)
                self._files.put_file(str(path), self._path(name), chunksize=_PART_BYTES, **within)

    def read(self, name: str, start: int | None = None, end: int | None = None) -> bytes:
        """Return the bytes from start up to end, or all. Raises FileNotFoundError, OSError."""
        with self._translate_errors():
            value: bytes = self._files.cat_file(self._path(name), start=start, end=end, **self._within())
            return value

    def download(self, name: str, path: Path) -> None:
        """Bring an object into a file. Raises FileNotFoundError, OSError."""
        size = self.size(name)
        with self._translate_errors():
            self._files.get_file(self._path(name), str(path), **self._within(size))

    def size(self, name: str) -> int:
        """Return how many bytes an object has. Raises FileNotFoundError, OSError."""
        return int(self._info(name)["size"])

    def modified_at(self, name: str) -> datetime:
        """Return when an object was written last, by the store's clock. Raises FileNotFoundError, OSError."""
        return _modified_at(self._info(name))

    def holds(self, name: str) -> bool:
        """Say whether an object is there. Raises OSError."""
        with self._translate_errors():
            return bool(self._files.exists(self._path(name), **self._within()))

    def delete(self, name: str) -> None:
        """Remove an object, if it is there. Raises OSError."""
        try:
            with self._translate_errors():
                self._files.rm_file(self._path(name), **self._within())
        except FileNotFoundError:
            return

    def names(self, below: str = "") -> list[str]:
        """Return the name of every object whose name begins with the folder `below`. Raises OSError."""
        return [name for name, _ in self._list(below)]

    def list_objects(self, below: str = "") -> list[ObjectInfo]:
        """Return every object below a folder of the store with its age. Raises OSError."""
        return [ObjectInfo(name, _modified_at(info)) for name, info in self._list(below)]

    def abort_uploads(self, before: datetime) -> int:
        """Abort multipart uploads that began before then and were not ended; return how many.

        Such parts are in no listing, and cost their bytes for ever. Raises OSError.
        """
        if not self._on_s3:
            return 0
        bucket, prefix, _ = self._files.split_path(self._root)
        with self._translate_errors():
            listed = self._call("list_multipart_uploads", Bucket=bucket, Prefix=_below(prefix))
            old = [begun for begun in listed.get("Uploads", []) if begun["Initiated"] < before]
            for begun in old:
                which = {"Key": begun["Key"], "UploadId": begun["UploadId"]}
                self._call("abort_multipart_upload", Bucket=bucket, **which)
        return len(old)

    def hindrance(self) -> str | None:
        """Give in one line why nothing can be read here now; None: it can. Takes some seconds at most."""
        try:
            self.require_there(_LOOK_S)
        except OSError as error:
            return str(error)
        return None

    def require_there(self, timeout_s: float = CALL_S) -> None:
        """Raise OSError unless the store answers and has its bucket, or its folder can be written."""
        try:
            with self._translate_errors(f"within {timeout_s:g} s"):
                if self._on_s3:
                    bucket, prefix, _ = self._files.split_path(self._root)
                    request = {"Bucket": bucket, "Prefix": _below(prefix), "MaxKeys": 1}
                    # The first time reads botocore's tables for a second or more, which no store answers for.
                    self._files.connect(timeout=CALL_S)
                    self._files.call_s3("list_objects_v2", timeout=timeout_s, **request)
        except FileNotFoundError as error:
            raise OSError(f"the object store has no bucket {bucket}") from error
        if self._folder and not os.access(folder := existing(Path(self._root)), os.W_OK | os.X_OK):
            raise OSError(f"the folder {folder} cannot be written")

    def _info(self, name: str) -> dict[str, Any]:
        with self._translate_errors():
            info: dict[str, Any] = self._files.info(self._path(name), **self._within())
            return info

    def _list(self, below: str) -> list[tuple[str, dict[str, Any]]]:
        files: dict[str, dict[str, Any]] = {}
        with suppress(FileNotFoundError), self._translate_errors():
            path = self._path(below).rstrip("/")
            # A listing of many objects is many requests, one after the other, each bounded by itself.
            files = self._files.find(path, detail=True)
        if not files:
            self.require_there()
        names = ((path.removeprefix(f"{self._root}/"), info) for path, info in files.items())
        # A folder that is empty is listed as itself by some servers.
        return [(name, info) for name, info in names if info["type"] == "file"]

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"

    def _within(self, size: int = 0) -> dict[str, float]:
        return {"timeout": CALL_S + size / _LEAST_BYTES_S} if self._files.async_impl else {}

    def _call(self, method: str, **arguments: Any) -> dict[str, Any]:
        answer: dict[str, Any] = self._files.call_s3(method, timeout=CALL_S, **arguments)
        return answer

    @contextmanager
    def _translate_errors(self, within: str = "in time") -> Iterator[None]:
        try:
            yield
        except FileNotFoundError:
            raise
        except TimeoutError as error:
            raise TimeoutError(f"the object store did not answer {within}") from error
        except self._failures as error:
            if not self._on_s3:
                raise
            did = "refused" if isinstance(error, PermissionError) else "failed"
            raise OSError(f"the object store {did}: {_one_line(error)}") from error


def _s3_options() -> dict[str, Any]:
    region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    return {
        # fsspec would hand out a client of other credentials or another endpoint, by the same arguments.
        "skip_instance_cache": True,
        # Other processes write and delete here: what was listed once says nothing of what is there now.
        "use_listings_cache": False,
        # Of a large file one part at a time is in memory.
        "max_concurrency": 1,
        "client_kwargs": {"region_name": region} if region else {},
        "config_kwargs": {
            "connect_timeout": 5,
            "read_timeout": 15,
            "max_pool_connections": AT_ONCE,
            "retries": {"mode": "standard", "total_max_attempts": 2},
        },
    }


def _failures(*, on_s3: bool) -> tuple[type[Exception], ...]:
    if not on_s3:
        return (OSError,)
    from aiohttp import ClientError as HttpError
    from botocore.exceptions import BotoCoreError, ClientError
    from botocore.parsers import ResponseParserError

    # A wrong endpoint is a ValueError.
    return (OSError, BotoCoreError, ClientError, ResponseParserError, HttpError, ValueError)


def _code(error: BaseException) -> str | None:
    """S3's code of an error, where it has one."""
    answer = getattr(error.__cause__ or error, "response", None) or getattr(error, "response", None)
    return answer.get("Error", {}).get("Code") if isinstance(answer, dict) else None


def _one_line(error: BaseException) -> str:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    line = " ".join(text.split()) or type(error).__name__
    code = _code(error)
    return f"{code}: {line}" if code and code not in line else line


def _modified_at(info: dict[str, Any]) -> datetime:
    modified: datetime = info.get("LastModified") or datetime.fromtimestamp(info["mtime"], UTC)
    return modified


def _below(prefix: str) -> str:
    return f"{prefix}/" if prefix else ""

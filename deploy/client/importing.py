"""Labelled folders into the memory of a running Forgewatch, over its API, in parts."""

import hashlib
import io
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import httpx

from deploy.client.connection import ClientError, ServerRefusedError
from deploy.client.http import Client
from memory.annotations import conflict, place
from memory.labels import LabelError
from memory.records import ImportDone, SkippedFile

_PART_FILES = 64
_PART_BYTES = 2**25
_DIGESTS_AT_ONCE = 500


class ImportFolderError(ClientError):
    """Fatal: the folder as a whole cannot be imported."""


def import_folder(
    folder: Path,
    api: Client,
    progress: Callable[[int, int], None],
    files: Sequence[tuple[str, Path]] | None = None,
    source: str | None = None,
) -> ImportDone:
    """Import every file of DIR/FAMILY/[GROUP/]FILE; one that cannot be read is reported and left out.

    files: those to import instead, each with its FAMILY/[GROUP/]FILE. source: what theirs is to be, as the
    stream has it; without it import: and the folder's name. Files that the memory holds are known by their
    content and not sent, so an import that was interrupted goes on when it is called again. progress is
    called with (done, of all). Raises ImportFolderError, and what a Client raises.
    """
    files = files_below(folder) if files is None else files
    name = folder.resolve().name
    done = ImportDone()

    def count(more: ImportDone) -> None:
        nonlocal done
        done += more
        progress(sum(done.new.values()) + done.already + len(done.skipped), len(files))

    for part in _parts(_unknown(files, api, count)):
        count(_send(api, name, source, part, done.labels))
    return done


def files_below(folder: Path) -> list[tuple[str, Path]]:
    """The files below a folder by their paths with slashes, sorted; hidden ones are none.

    Raises ImportFolderError.
    """
    if not folder.is_dir():
        raise ImportFolderError(f"{folder} is no folder")
    files = []
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        if path.is_file() and not any(part.startswith(".") for part in parts):
            files.append(("/".join(parts), path))
    if not files:
        raise ImportFolderError(f"{folder} holds no files; expected DIR/FAMILY/[GROUP/]FILE")
    return files


def _unknown(
    files: Sequence[tuple[str, Path]], api: Client, count: Callable[[ImportDone], None]
) -> Iterator[tuple[str, bytes]]:
    """Yield the files that the memory does not hold, with their bytes; count the others."""
    for start in range(0, len(files), _DIGESTS_AT_ONCE):
        placed: list[tuple[str, Path, str, str]] = []
        for name, path in files[start : start + _DIGESTS_AT_ONCE]:
            try:
                family, _ = place(name)
                with path.open("rb") as file:
                    placed.append((name, path, family, hashlib.file_digest(file, "sha256").hexdigest()))
            except LabelError as error:
                count(_skipped_file(name, str(error)))
            except OSError as error:
                count(_skipped_file(name, f"cannot be read: {error.strerror}"))
        known = api.known_media(sorted({digest for *_, digest in placed}))
        for name, path, family, digest in placed:
            if digest not in known:
                try:
                    yield name, path.read_bytes()
                except OSError as error:
                    count(_skipped_file(name, f"cannot be read: {error.strerror}"))
            elif (why := conflict(family, known[digest], f"import-{digest}")) is None:
                count(ImportDone(already=1))
            else:
                count(_skipped_file(name, why))


def _parts(files: Iterable[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    part: list[tuple[str, bytes]] = []
    size = 0
    for name, data in files:
        if part and (len(part) == _PART_FILES or size + len(data) > _PART_BYTES):
            yield part
            part, size = [], 0
        part.append((name, data))
        size += len(data)
    if part:
        yield part


def _send(
    api: Client, name: str, source: str | None, part: list[tuple[str, bytes]], labels: dict[str, int]
) -> ImportDone:
    try:
        return api.add_files(name, _archive(part), labels, source)
    except ServerRefusedError as refused:
        if refused.status != httpx.codes.REQUEST_ENTITY_TOO_LARGE:
            raise
        if len(part) == 1:
            return _skipped_file(part[0][0], f"too large: {refused}")
    half = len(part) // 2
    first = _send(api, name, source, part[:half], labels)
    return first + _send(api, name, source, part[half:], labels | first.labels)


def _archive(part: Sequence[tuple[str, bytes]]) -> bytes:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w", format=tarfile.PAX_FORMAT) as opened:
        for name, data in part:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            opened.addfile(member, io.BytesIO(data))
    return archive.getvalue()


def _skipped_file(path: str, reason: str) -> ImportDone:
    # A name that is no text is shown as far as it is one.
    printable = path.encode(errors="replace").decode()
    return ImportDone(skipped=[SkippedFile(path=printable, reason=reason)])

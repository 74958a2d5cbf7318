"""Reads the tar archive of an import, which anybody may have made: plain files, one behind the other."""

import tarfile
from collections.abc import Iterator
from typing import IO, Self

from memory.import_files import LabelledFile

MAX_MEMBERS = 10_000
_MAX_EXTENSION_BYTES = 2**16
"""of a header that tells more of the file behind it, such as a long name"""
_EXTENSIONS = (
    tarfile.XHDTYPE,
    tarfile.XGLTYPE,
    tarfile.SOLARIS_XHDTYPE,
    tarfile.GNUTYPE_LONGNAME,
    tarfile.GNUTYPE_LONGLINK,
)


class ArchiveError(Exception):
    """An archive that is none, or holds what no import has."""


def files_of(archive: IO[bytes]) -> list[LabelledFile]:
    """Read all files of a tar archive, not compressed, with their bytes. Raises ArchiveError.

    They have no more bytes together than the archive, since none may begin before the one before it ends.
    """
    try:
        return list(_files(archive))
    except (tarfile.TarError, ValueError, OverflowError, OSError, EOFError, RecursionError) as error:
        raise ArchiveError(f"no tar archive of plain files: {error}") from error


def _files(archive: IO[bytes]) -> Iterator[LabelledFile]:
    end = 0
    with tarfile.open(fileobj=archive, mode="r:", tarinfo=_Header) as opened:
        for count, member in enumerate(opened, 1):
            if count > MAX_MEMBERS:
                raise ValueError(f"more than {MAX_MEMBERS} members")
            # Extended headers have a size of their own, which tarfile takes as it is (CVE-2025-8194).
            if member.size < 0 or member.offset < end:
                raise ValueError(f"{member.name!r} lies before the member in front of it")
            end = member.offset_data + member.size
            if member.isdir():
                continue
            content = opened.extractfile(member) if member.isreg() and not member.sparse else None
            if content is None:
                raise ValueError(f"{member.name!r} is no plain file")
            yield LabelledFile(member.name.removeprefix("./"), content.read())


class _Header(tarfile.TarInfo):
    """A header whose size is one that tarfile may be told of: it would go back, or read all memory full."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> Self:
        """Read one header's block. Raises ValueError for such a size."""
        header = super().frombuf(buf, encoding, errors)
        if header.size < 0:
            raise ValueError(f"{header.name!r} has {header.size} bytes")
        if header.type in _EXTENSIONS and header.size > _MAX_EXTENSION_BYTES:
            raise ValueError(f"a header of {header.size} bytes; {_MAX_EXTENSION_BYTES} are allowed")
        return header

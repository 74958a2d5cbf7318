"""Strips the libraries of this Python, and imports all of Forgewatch, so that their bytecode is written."""

import contextlib
import importlib
import pkgutil
import struct
import sysconfig
from pathlib import Path


def strip(library: bytes) -> bytes:
    """An ELF file of 64 bits without the symbols and sections of debuggers: a loader reads segments alone.

    By the System V ABI, chapter 5, a segment's place in the file is its address, modulo the alignment: so it
    moves by multiples of that.
    """
    table, (size, count) = struct.unpack_from("<Q", library, 32)[0], struct.unpack_from("<HH", library, 54)
    headers = range(table, table + size * count, size)
    # place, length and alignment
    segments = [struct.unpack_from("<Q16xQ8xQ", library, at + 8) for at in headers]
    page = max(alignment for *_, alignment in segments)
    kept, end, cut, moved = bytearray(), 0, 0, dict[int, int]()
    for start, length, _ in sorted([(0, 64, 0), (table, size * count, 0), *segments]):
        cut += max(0, start - end) // page * page
        moved[start] = start - cut
        kept += bytes(max(0, moved[start] - len(kept)))
        kept[moved[start] : moved[start] + length] = library[start : start + length]
        end = max(end, start + length)
    for number, (start, *_) in enumerate(segments):
        struct.pack_into("<Q", kept, moved[table] + size * number + 8, moved[start])
    struct.pack_into("<QQ", kept, 32, moved[table], 0)  # no sections
    struct.pack_into("<HH", kept, 60, 0, 0)
    return bytes(kept)


def main() -> None:
    """Strip what is of 64 bits and little-endian, then import what can be."""
    for path in Path(sysconfig.get_path("purelib")).rglob("*.so*"):
        library = path.read_bytes()
        if library[:6] == b"\x7fELF\x02\x01":
            path.write_bytes(strip(library))
    for room in ("ingest", "detector", "memory", "updater", "deploy"):
        for module in pkgutil.walk_packages(importlib.import_module(room).__path__, f"{room}."):
            # What is left out needs more than this image has, or is a program.
            if not module.name.endswith(("__main__", ".env")):
                with contextlib.suppress(Exception):
                    importlib.import_module(module.name)
    importlib.import_module("PIL.Image").init()


if __name__ == "__main__":
    main()

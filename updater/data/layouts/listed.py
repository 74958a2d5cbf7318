"""Functions for every list of files: find them, count omissions, keep groups apart."""

import json
from collections import Counter
from collections.abc import Generator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from updater.data.layouts.entries import Entry, LayoutError, Listing, Split

# What is tested is what papers print, so that it stays whole; training gives way to both others.
_KEPT_FIRST = ("test", "val", "train")

MISSING = "files are listed and missing"


class Tally:
    """How often each kind of thing was met, and where first."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._first: dict[str, str] = {}

    def add(self, kind: str, where: object) -> None:
        """Count one more. kind: the rest of a sentence that begins with a number."""
        self._counts[kind] += 1
        # What a list names is nobody's to trust: a line stays a line, and a terminal what it was.
        if kind not in self._first:
            self._first[kind] = "".join(c if c.isprintable() else "?" for c in str(where))

    def __getitem__(self, kind: str) -> int:
        return self._counts[kind]

    def notes(self) -> tuple[str, ...]:
        """Return a line for each kind, in the order in which they were met."""
        return tuple(f"{count} {kind} (first: {self._first[kind]})" for kind, count in self._counts.items())


def subfolders(folder: Path) -> list[Path]:
    """Return the folders in a folder, sorted, without hidden ones; none where there is no such folder."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def media_in(folder: Path, expected: str) -> list[Path]:
    """Return every file below a folder that is not hidden, sorted.

    Raises LayoutError, which says what was expected in the folder above it, where it is missing or empty.
    """
    paths = [
        path
        for path in (sorted(folder.rglob("*")) if folder.is_dir() else [])
        # Not `is_file`: a link that leads nowhere must be told of, not skipped.
        if not path.is_dir() and not any(part.startswith(".") for part in path.relative_to(folder).parts)
    ]
    if not paths:
        problem = "holds no media" if folder.is_dir() else "is missing"
        raise LayoutError(f"{folder} {problem}: {folder.parent} needs {expected}")
    return paths


def below(folder: Path, listed: str) -> Path | None:
    """Return the path that a list names below a folder, with either slash; None if it leads out of it."""
    name = PurePosixPath(listed.replace("\\", "/"))
    if name.is_absolute() or ".." in name.parts or not name.parts or "\0" in listed:
        return None
    return folder / name


def is_there(path: Path) -> bool:
    """Say whether a file is there that can be looked at: a list may name what no disk can hold."""
    try:
        return path.is_file()
    except OSError:
        return False


def lines_of(path: Path) -> Generator[str, None, None]:
    """Yield the lines of a list that are not empty. Raises LayoutError where it cannot be read."""
    try:
        # A byte that is no text makes a name that is not there, and so a file that is missing.
        with path.open(encoding="utf-8", errors="replace") as opened:
            yield from (line.strip() for line in opened if line.strip())
    except OSError as error:
        raise LayoutError(f"{path} cannot be read ({error.strerror}): unpack it there") from error


def json_in(path: Path) -> Any:
    """Return the value of a JSON file. Raises LayoutError where it cannot be read or holds something else."""
    try:
        return json.loads(path.read_bytes())
    except OSError as error:
        raise LayoutError(f"{path} cannot be read ({error.strerror}): unpack it there") from error
    except (ValueError, RecursionError) as error:
        raise LayoutError(f"{path} is no JSON ({error}): fetch it again") from error


def refuse_another_release(where: object, present: int, named: int) -> None:
    """Raise LayoutError where fewer than half of the files that a list names are there."""
    if 2 * present < named:
        raise LayoutError(
            f"{where} names {named} files; of these, {present} are there: list and files must be of one"
            " release, and unpacked whole"
        )


def group_items(keys: Sequence[Sequence[str]]) -> list[str]:
    """Return the name of each item's group: items that share a key are of one, also by way of others.

    keys: one or more of each item. The name is the first of the group's keys in the order of the alphabet.
    """
    names = sorted({key for of in keys for key in of})
    column = {name: number for number, name in enumerate(names)}
    links = [(column[of[0]], column[key]) for of in keys for key in of]
    rows, columns = np.array(links, np.int64).reshape(-1, 2).T
    graph = coo_matrix((np.ones(len(links), bool), (rows, columns)), (len(names), len(names)))
    _, group = connected_components(graph, directed=False)
    first: dict[int, str] = {}
    for name, number in zip(names, group, strict=True):
        first.setdefault(int(number), name)
    return [first[int(group[column[of[0]]])] for of in keys]


def kept_apart(entries: Sequence[Entry], tally: Tally) -> tuple[Entry, ...]:
    """Return the entries without those whose group stands in a split that is kept before theirs.

    The order is test, val, train. What is left out is counted.
    """
    home: dict[str, str] = {}
    for split in _KEPT_FIRST:
        for entry in entries:
            if entry.split == split:
                home.setdefault(entry.group, split)
    kept = []
    for entry in entries:
        if (there := home[entry.group]) == entry.split:
            kept.append(entry)
        else:
            tally.add(f"entries are left out of {entry.split}, since their group is in {there}", entry.path)
    return tuple(kept)


def reported_split(listing: Listing) -> Split | None:
    """Return the split that figures are of: the test, or where none is labelled the validation.

    None where there is nothing else to learn from.
    """
    splits = {entry.split for entry in listing.entries}
    if "train" not in splits:
        return None
    return "test" if "test" in splits else "val" if "val" in splits else None


def together(name: str, listings: Sequence[Listing]) -> Listing:
    """Return several listings of one set as one; a group stays in one split."""
    tally = Tally()
    entries = kept_apart([entry for listing in listings for entry in listing.entries], tally)
    notes = [note for listing in listings for note in listing.notes]
    return Listing(name, entries, (*notes, *tally.notes()))

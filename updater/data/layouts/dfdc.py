"""The layout of the Deepfake Detection Challenge: numbered parts for training, and a labelled test.

Dolhansky et al. 2020, "The DeepFake Detection Challenge (DFDC) Dataset".

    dfdc_train_part_N/metadata.json     {FILE: {"label": "REAL" or "FAKE", "original": FILE or null}}
    test/labels.csv                     filename,label        1 is fake

A fake and its original are one group. Which of several methods forged a file was not published.
"""

import csv
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from memory.records import REAL
from updater.data.layouts.entries import Entry, LayoutError, Listing, Split
from updater.data.layouts.listed import (
    MISSING,
    Tally,
    below,
    group_items,
    is_there,
    json_in,
    kept_apart,
    lines_of,
    refuse_another_release,
    subfolders,
)

FAMILY = "DFDC"
_PART = re.compile(r"dfdc_train_part_(\d+)")
_LABELS = {"REAL": 0, "FAKE": 1}
_UNLABELLED = "files are neither real nor fake by their label, and are left out"


class _Named(NamedTuple):
    path: Path
    label: int
    original: str
    split: Split


def load_dfdc(folder: Path) -> Listing:
    """List the parts that are there in the order of their numbers, and then the test where it is there.

    Raises LayoutError where neither is, for a list that cannot be read, and where fewer than half of the
    files of one list are there.
    """
    tally = Tally()
    parts = [place for place in subfolders(folder) if _PART.fullmatch(place.name)]
    named = [
        file
        for place in sorted(parts, key=lambda place: int(place.name.rpartition("_")[2]))
        for file in _there(_in_part(place, tally), place / "metadata.json", tally)
    ]
    labels = folder / "test" / "labels.csv"
    if labels.is_file():
        named += _there(_in_test(labels, tally), labels, tally)
    if not named:
        raise LayoutError(
            f"{folder} has no dfdc_train_part_N/metadata.json and no test/labels.csv: unpack one"
        )
    groups = group_items([(file.path.name, file.original) for file in named])
    entries = [
        Entry(file.path, file.label, FAMILY if file.label else REAL, group, file.split)
        for file, group in zip(named, groups, strict=True)
    ]
    return Listing("dfdc", kept_apart(entries, tally), tally.notes())


def _in_part(place: Path, tally: Tally) -> Iterator[_Named]:
    path = place / "metadata.json"
    listed = json_in(path)
    if not isinstance(listed, dict):
        raise LayoutError(f"{path} does not name each file's class: fetch it again")
    for name, about in listed.items():
        row = about if isinstance(about, dict) else {}
        label, original, file = _LABELS.get(str(row.get("label"))), row.get("original"), below(place, name)
        if label is None or file is None:
            tally.add(_UNLABELLED, place / name)
        else:
            yield _Named(file, label, original if isinstance(original, str) else file.name, "train")


def _in_test(path: Path, tally: Tally) -> Iterator[_Named]:
    with closing(lines_of(path)) as lines:
        rows = csv.DictReader(lines)
        try:
            for row in rows:
                name, label = row.get("filename") or "", row.get("label")
                if label not in ("0", "1") or (file := below(path.parent, name)) is None:
                    tally.add(_UNLABELLED, f"{path}: {name}")
                else:
                    yield _Named(file, int(label), file.name, "test")
        except csv.Error as error:
            raise LayoutError(f"{path}, line {rows.line_num}: {error}: fetch it again") from error


def _there(files: Iterator[_Named], where: Path, tally: Tally) -> Iterator[_Named]:
    """Yield the files that are there. Raises LayoutError, at the end, where fewer than half are."""
    seen = named = 0
    for file in files:
        named += 1
        if is_there(file.path):
            seen += 1
            yield file
        else:
            tally.add(MISSING, file.path)
    refuse_another_release(where, seen, named)

"""The media of a run in ForgeryNet's layout, and of another set to test on, as lists alone.

Nothing here loads torch: data that is missing or cannot be used is told at once.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from filecmp import cmp
from operator import attrgetter
from pathlib import Path

from updater.benchmark.forgerynet.choices import TASKS, Choices, Kinds, class_of, families_of, with_own_names
from updater.data.layouts.entries import Entry, LayoutError
from updater.data.layouts.forgerynet import load_forgerynet
from updater.data.layouts.layouts import pictures_of, read_layout
from updater.data.layouts.listed import reported_split


@dataclass(frozen=True)
class ForgeryTree:
    """The three sets of a run, and its facts. held_back sets thresholds; it may be empty."""

    name: str
    digest: str
    train: tuple[Entry, ...]
    held_back: tuple[Entry, ...]
    test: tuple[Entry, ...]
    kinds: Kinds
    notes: tuple[str, ...]


def read_tree(choices: Choices, root: Path, other: Sequence[Entry] = ()) -> ForgeryTree:
    """List a folder's media for a task; other: what is tested on instead.

    Labels of ForgeryNet's test were never published: the paper's tables are of the validation. Raises
    LayoutError, and OSError.
    """
    if not root.is_dir():
        raise LayoutError(f"--data {root} is no folder: name the one that holds Training and Validation")
    medium = TASKS[choices.task].medium
    listing, name = load_forgerynet(root, medium), "synthetic" if choices.synthetic else "forgerynet"
    entries = with_own_names(listing.entries) if choices.synthetic else listing.entries
    train, val, test = (tuple(e for e in entries if e.split == of) for of in ("train", "val", "test"))
    sets = train, val if test else (), tuple(other) or test or val
    kinds = families_of(medium, synthetic=choices.synthetic)
    for group in choices.train_on or (kinds.values() if choices.protocol == "cross" else ()):
        if not any(group in (entry.family, kinds.get(entry.family)) for entry in train):
            raise LayoutError(f"train has no forgery of {group}: leave it out of --train-on")
    check_sets(train, sets[2], lambda entry: class_of(entry.family, kinds, choices.classes))
    digest = digest_of(entries, root) + (digest_of(other, root) if other else "")
    return ForgeryTree(f"{name}-{medium}", digest, *sets, kinds, listing.notes)


def read_other(choices: Choices) -> tuple[Entry, ...]:
    """List what another set reports by, for `read_tree`; empty where none is named. Raises LayoutError."""
    layout, _, folder = (choices.test_on or "").partition("=")
    if not layout:
        return ()
    listing = read_layout(layout, Path(folder))
    split = reported_split(listing)
    entries = tuple(entry for entry in listing.entries if split in (None, entry.split))
    if choices.task != "image":
        return entries
    return tuple(replace(e, path=path, pictures=()) for e in entries for path in pictures_of(e))


def check_sets(
    train: Sequence[Entry], test: Sequence[Entry], number_of: Callable[[Entry], int] = attrgetter("label")
) -> None:
    """Raise LayoutError where a set lacks reals or forgeries, has a class of one, or both have a file."""
    for part, entries in (("train", train), ("test", test)):
        for label, name in enumerate(("reals", "forgeries")):
            if sum(entry.label == label for entry in entries) < 2:
                raise LayoutError(f"{part} needs two {name} or more, and has fewer: look at its list")
        if part == "train" and 1 in Counter(map(number_of, entries)).values():
            raise LayoutError(f"{part} has a class of one file alone: add another, or choose fewer --classes")
    sizes: dict[int, list[Path]] = {}
    for entry in test:
        if entry.path.is_file():
            sizes.setdefault(entry.path.stat().st_size, []).append(entry.path)
    for entry in train:
        for path in sizes.get(entry.path.stat().st_size, ()) if entry.path.is_file() else ():
            if cmp(entry.path, path, shallow=False):
                raise LayoutError(f"{entry.path} is trained on, and {path}, of the test, is the same file")


def digest_of(entries: Sequence[Entry], root: Path) -> str:
    """Return the SHA-256 over each file's place below the root, size, label and other facts."""
    total = hashlib.sha256()
    for entry in entries:
        place = entry.path.relative_to(root) if entry.path.is_relative_to(root) else entry.path
        size = entry.path.stat().st_size
        facts = (str(place), size, entry.family, entry.split, entry.segments, entry.annotated)
        total.update(repr(facts).encode() + b"\n")
    return total.hexdigest()

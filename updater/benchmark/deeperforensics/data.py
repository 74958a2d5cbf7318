"""The data set's trees as a benchmark takes them: a listing for each variant, and the hidden test."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ingest.durable import folder_aside
from ingest.records import CropPlan
from updater.benchmark.data.deeperforensics import load_deeperforensics, load_hidden
from updater.benchmark.data.entries import Entry, Listing
from updater.benchmark.data.tasks import LayoutError
from updater.benchmark.deeperforensics.choices import HIDDEN, Choices, variants_of
from updater.benchmark.deeperforensics.hidden import ours
from updater.benchmark.deeperforensics.media import SMALL
from updater.benchmark.deeperforensics.tree import HIDDEN_FOLDER, REALS_FOLDER, write_deeperforensics
from updater.benchmark.forgerynet.results import digest_of
from updater.progress import Progress
from updater.training.processes import is_first, wait

_TREE = "1"
"""counts what has changed in our own clips"""


@dataclass(frozen=True)
class Data:
    """What was read of a tree."""

    name: str
    digest: str
    variants: dict[str, Listing]
    hidden: tuple[Entry, ...]
    """empty where there is nothing for it"""
    plan: CropPlan
    notes: tuple[str, ...]

    def part(self, variant: str, split: str) -> tuple[Entry, ...]:
        """Return a split of a variant."""
        return tuple(one for one in self.variants[variant].entries if one.split == split)


def read(
    choices: Choices,
    data: Path | None,
    reals: Path | None,
    hidden: Path | None,
    home: Path,
    progress: Progress,
) -> Data:
    """Read the variants that the choices name; without a folder, make our own clips once and read those.

    Raises LayoutError, and OSError.
    """
    if hidden is not None:  # before minutes go by
        load_hidden(hidden)
    if data is None:
        root = home / f"deeperforensics-{_TREE}"
        if is_first() and not root.is_dir():
            with folder_aside(root) as aside:
                write_deeperforensics(aside, progress=lambda *at: progress("make clips", *at))
        wait()
        data, reals, plan = root, root / REALS_FOLDER, SMALL
        hidden, name = hidden or root / HIDDEN_FOLDER, "synthetic"
    else:
        plan, name = CropPlan(), "deeperforensics"
    if not data.is_dir():
        raise LayoutError(f"--data {data} is no folder: name the one that holds manipulated_videos and lists")
    if reals is None or not reals.is_dir():
        raise LayoutError(f"--real {reals} is no folder: name FaceForensics++, whose videos the reals are")
    variants = {one: load_deeperforensics(data, reals, one) for one in _needed(choices)}
    shown = load_hidden(hidden).entries if hidden is not None else ours(data, reals)
    notes = tuple(f"{of.name}: {note}" for of in variants.values() for note in of.notes)
    if not shown:
        notes = (*notes, f"no {HIDDEN} test: it was never released, and there is no other method's folder")
    every = [entry for of in variants.values() for entry in of.entries]
    return Data(name, digest_of([*every, *shown], data), variants, shown, plan, notes)


def _needed(choices: Choices) -> Iterable[str]:
    trained = [variant for one in choices.train for variant in variants_of(one)]
    # The clips under one distortion at a time are made of those that have none.
    return dict.fromkeys([*trained, *choices.test, "std"])

"""ForgeryNet's tasks as benchmarks: their data, and a seed's figures.

To add a task is a module with its `measure`, and a line in TASKS and in MEASURES.
"""

import hashlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from filecmp import cmp
from functools import partial
from operator import attrgetter
from pathlib import Path

import torch

from ingest.durable import folder_aside
from updater.benchmark.forgerynet import classes, map_networks, spatial, temporal
from updater.benchmark.forgerynet.choices import TASKS, Choices, Job, class_of, families_of, with_own_names
from updater.benchmark.report.harness import Benchmark, Seed
from updater.benchmark.report.outcome import Outcome
from updater.benchmark.synthetic.forgerynet import write_forgerynet
from updater.data.layouts.entries import Entry, LayoutError, Listing
from updater.data.layouts.forgerynet import Medium, load_forgerynet
from updater.data.layouts.layouts import pictures_of, read_layout
from updater.data.layouts.listed import reported_split
from updater.progress import Progress
from updater.training.processes import is_first, wait
from updater.training.weights import read_weights

MEASURES: Mapping[str, Callable[[Job], Outcome]] = {
    "image": classes.measure,
    "spatial": spatial.measure,
    "video": classes.measure,
    "temporal": temporal.measure,
}
_TREE = "1"
"""counts what has changed in our own media"""


@dataclass(frozen=True)
class ForgeryTree:
    """A tree that was read, and its facts for a run."""

    listing: Listing
    digest: str
    synthetic: bool


def read(medium: Medium, data: Path | None, home: Path, progress: Progress) -> ForgeryTree:
    """Read ForgeryNet's layout from a folder; without one, make our own media in it once, and read that.

    home: where those are made. Raises LayoutError, and OSError.
    """
    if data is not None:
        if not data.is_dir():
            raise LayoutError(f"--data {data} is no folder: name the one that holds Training and Validation")
        listing = load_forgerynet(data, medium)
        return ForgeryTree(listing, digest_of(listing.entries, data), synthetic=False)
    root = home / f"forgerynet-{medium}s-{_TREE}"
    say = partial(progress, f"make {medium}s")
    make_once(root, partial(write_forgerynet, medium=medium, progress=say))
    listing = load_forgerynet(root, medium)
    own = Listing(f"synthetic-{medium}", with_own_names(listing.entries), listing.notes)
    return ForgeryTree(own, digest_of(own.entries, root), synthetic=True)


def make_once(root: Path, write: Callable[[Path], object]) -> None:
    """Have our own media written into a folder that is not there; of several processes the first does."""
    if is_first() and not root.is_dir():
        with folder_aside(root) as aside:
            write(aside)
    wait()


def beginning(choices: Choices, device: torch.device, weights: Path | None) -> Choices:
    """Return the choices with the digest of the weights, whose network is made once to see that they fit.

    Raises NetworkError, BackboneError and WeightsError.
    """
    if weights is None and not choices.pretrained:
        return choices
    makers = {"image": classes.of_pictures, "video": classes.of_videos}
    if choices.task == "temporal":
        seen_by = replace(choices, model=choices.model.partition(":")[2])
        classes.of_videos(seen_by, 2, device, weights).make()
    elif choices.task in makers:
        makers[choices.task](choices, 2, device, weights).make()
    else:
        map_networks.maker(choices, device, weights)[1]()
    return replace(choices, checkpoint=read_weights(weights).digest if weights else None)


def benchmark(
    choices: Choices, data: ForgeryTree, *, cache: Path, device: torch.device, weights: Path | None
) -> Benchmark[Job]:
    """Return a task as it is run. cache: of files' facts; weights: to begin with."""
    train, held_back, test = _splits(data.listing.entries)
    if choices.test_on is not None:
        layout, _, folder = choices.test_on.partition("=")
        other = read_layout(layout, Path(folder))
        split = reported_split(other)
        test = tuple(entry for entry in other.entries if split in (None, entry.split))
        if choices.task == "image":
            test = tuple(replace(e, path=path, pictures=()) for e in test for path in pictures_of(e))
        data = replace(data, digest=data.digest + digest_of(test, Path(folder)))
    kinds = families_of(TASKS[choices.task].medium, synthetic=data.synthetic)
    check_sets(train, test, lambda entry: class_of(entry.family, kinds, choices.classes))

    def prepare(progress: Progress) -> Job:
        return Job(train, held_back, test, kinds, choices, 0, device, Path(), cache, weights, progress)

    def measure(job: Job, seed: Seed) -> Outcome:
        outcome = MEASURES[choices.task](job.of(seed))
        return outcome.model_copy(update={"notes": (*data.listing.notes, *outcome.notes)})

    return Benchmark(
        "forgerynet",
        data.listing.name,
        data.digest,
        choices.as_record(),
        (choices.task, choices.model, str(choices.classes), choices.protocol),
        prepare,
        measure,
        task=choices.task,
    )


def _splits(entries: Sequence[Entry]) -> tuple[tuple[Entry, ...], tuple[Entry, ...], tuple[Entry, ...]]:
    """Return the files to train on, to set thresholds by, and to report.

    Labels of ForgeryNet's test were never published: the paper's tables are of the validation.
    """
    train, val, test = (
        tuple(entry for entry in entries if entry.split == of) for of in ("train", "val", "test")
    )
    return (train, val, test) if test else (train, (), val)


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

"""ForgeryNet's tasks as benchmarks: their data, and a seed's figures.

To add a task is a module with its `measure`, and a line in TASKS.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from ingest.durable import folder_aside
from updater.benchmark.forgerynet import classes, spatial, temporal
from updater.benchmark.forgerynet.choices import Choices, Job, families_of, with_own_names
from updater.benchmark.networks import images, videos
from updater.benchmark.report.harness import Benchmark, Seed
from updater.benchmark.report.outcome import Outcome
from updater.benchmark.synthetic.forgerynet import write_forgerynet_pictures, write_forgerynet_videos
from updater.data.layouts.entries import Entry, LayoutError, Listing
from updater.data.layouts.forgerynet import Medium, load_forgerynet
from updater.progress import Progress
from updater.training.processes import is_first, wait


@dataclass(frozen=True)
class ForgeryTask:
    """A task: its data, its default network, and its measurement."""

    medium: Medium
    model: str
    """on data of ForgeryNet's size"""
    small_model: str
    """on our own media, in minutes of two cores"""
    measure: Callable[[Job], Outcome]
    check: Callable[[str], None]
    """raises for a model's name that is none, before any media are made or read"""


TASKS: Mapping[str, ForgeryTask] = {
    "image": ForgeryTask(
        "image", "legacy_xception", "highpass:mobilenetv3_small_100", classes.measure, images.check
    ),
    "spatial": ForgeryTask("image", "localizer", "localizer", spatial.measure, spatial.check),
    "video": ForgeryTask(
        "video",
        "x3d_m",
        "frames:highpass:mobilenetv3_small_100",
        classes.measure,
        partial(videos.check, offered=videos.FORGERYNETS),
    ),
    "temporal": ForgeryTask("video", "convolutions", "convolutions", temporal.measure, temporal.check),
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
    write = write_forgerynet_pictures if medium == "image" else write_forgerynet_videos
    make_once(root, partial(write, progress=lambda *at: progress(f"make {medium}s", *at)))
    listing = load_forgerynet(root, medium)
    own = Listing(f"synthetic-{medium}", with_own_names(listing.entries), listing.notes)
    return ForgeryTree(own, digest_of(own.entries, root), synthetic=True)


def make_once(root: Path, write: Callable[[Path], object]) -> None:
    """Have our own media written into a folder that is not there; of several processes the first does."""
    if is_first() and not root.is_dir():
        with folder_aside(root) as aside:
            write(aside)
    wait()


def benchmark(
    choices: Choices, data: ForgeryTree, *, cache: Path, device: torch.device, weights: Path | None
) -> Benchmark[Job]:
    """Return a task as it is run. cache: of files' facts; weights: to begin with."""
    train, held_back, test = _splits(data.listing.entries)
    kinds = families_of(TASKS[choices.task].medium, synthetic=data.synthetic)

    def prepare(progress: Progress) -> Job:
        return Job(train, held_back, test, kinds, choices, 0, device, Path(), cache, weights, progress)

    def measure(job: Job, seed: Seed) -> Outcome:
        outcome = TASKS[choices.task].measure(job.of(seed))
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


def digest_of(entries: Sequence[Entry], root: Path) -> str:
    """Return the SHA-256 over each file's place below the root, size, label and other facts."""
    total = hashlib.sha256()
    for entry in entries:
        place = entry.path.relative_to(root) if entry.path.is_relative_to(root) else entry.path
        size = entry.path.stat().st_size
        facts = (str(place), size, entry.family, entry.split, entry.segments, entry.annotated)
        total.update(repr(facts).encode() + b"\n")
    return total.hexdigest()

"""One task of ForgeryNet's over several seeds, each in a folder of its own that is not done again."""

import hashlib
import importlib.metadata
import json
import platform
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import JsonValue

from ingest.durable import folder_aside, write_durably
from updater.benchmark.data.entries import Entry, Listing
from updater.benchmark.data.forgerynet import load_forgerynet
from updater.benchmark.data.forgerynet_rows import Medium
from updater.benchmark.data.tasks import LayoutError
from updater.benchmark.forgerynet.choices import Choices
from updater.benchmark.forgerynet.families import families_of, with_own_names
from updater.benchmark.forgerynet.job import Job
from updater.benchmark.forgerynet.results import Measured, digest_of, load_measured
from updater.benchmark.forgerynet.tasks import TASKS, TREES
from updater.benchmark.report.run_folder import RUN_FILE, ResultsError
from updater.progress import Progress
from updater.training.processes import is_first, wait

_PACKAGES = ("numpy", "torch", "torchvision", "timm")
_TREE = "1"
"""counts what has changed in our own media"""


@dataclass(frozen=True)
class Data:
    """A tree that was read, and what a run is to know of it."""

    listing: Listing
    digest: str
    synthetic: bool


def read(medium: Medium, data: Path | None, home: Path, progress: Progress) -> Data:
    """Read ForgeryNet's layout from a folder; without one, make our own media in it once, and read that.

    home: where those are made. Raises LayoutError, and OSError.
    """
    if data is not None:
        if not data.is_dir():
            raise LayoutError(f"--data {data} is no folder: name the one that holds Training and Validation")
        listing = load_forgerynet(data, medium)
        return Data(listing, digest_of(listing.entries, data), synthetic=False)
    if medium not in TREES:
        raise LayoutError(f"there are no {medium}s of our own: name a folder with --data")
    root = home / f"forgerynet-{medium}s-{_TREE}"
    if is_first() and not root.is_dir():
        with folder_aside(root) as aside:
            TREES[medium](aside, progress)
    wait()
    listing = load_forgerynet(root, medium)
    own = Listing(f"synthetic-{medium}", with_own_names(listing.entries), listing.notes)
    return Data(own, digest_of(own.entries, root), synthetic=True)


def default_name(choices: Choices, data: Data) -> str:
    """Return a name for a folder of runs: what tables compare, and a digest of all that they follow from."""
    words = [
        "forgerynet",
        choices.task,
        choices.model.replace(":", "-"),
        str(choices.classes),
        choices.protocol,
    ]
    return "-".join([*words, digest(data.digest, choices.described())[:8]])


def run(
    choices: Choices,
    data: Data,
    seeds: Sequence[int],
    folder: Path,
    *,
    cache: Path,
    command: tuple[str, ...],
    device: torch.device,
    weights: Path | None,
    progress: Progress,
) -> Iterator[Measured]:
    """Run the seeds that the folder does not hold yet; yield what every seed gave.

    Of several processes that train together the first writes. Raises ResultsError where the folder holds a
    run of other data or choices, and what the task raises.
    """
    for seed in seeds:
        check_same(folder / f"seed-{seed}", choices.described(), data.digest)
    task = TASKS[choices.task]
    for seed in seeds:
        place = folder / f"seed-{seed}"
        if (place / RUN_FILE).is_file():
            yield load_measured(place)
            continue
        parts = place / "parts" / digest(data.digest, choices.described(), seed)[:16]
        parts.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        outcome = task.measure(
            job_of(
                choices,
                data,
                seed,
                parts,
                cache,
                device,
                weights,
                lambda stage, *at, seed=seed: progress(f"seed {seed}: {stage}", *at),
            )
        )
        notes = (*data.listing.notes, *outcome.notes)
        found = Measured(
            benchmark="forgerynet",
            task=choices.task,
            data=data.listing.name,
            data_digest=data.digest,
            command=command,
            options=choices.described(),
            versions={"python": platform.python_version()}
            | {package: importlib.metadata.version(package) for package in _PACKAGES},
            device=device.type,
            seed=seed,
            seconds=time.monotonic() - began,
            outcome=outcome.model_copy(update={"notes": notes}),
        )
        if is_first():
            write_durably(place / RUN_FILE, found.model_dump_json(indent=1).encode())
            shutil.rmtree(place / "parts")
        yield found


def job_of(
    choices: Choices,
    data: Data,
    seed: int,
    folder: Path,
    cache: Path,
    device: torch.device,
    weights: Path | None,
    progress: Progress,
) -> Job:
    """Return what a task is given: its splits, and folders for what it has begun and what it knows."""
    train, held_back, test = _splits(data.listing.entries)
    kinds = families_of(TASKS[choices.task].medium, synthetic=data.synthetic)
    return Job(train, held_back, test, kinds, choices, seed, device, folder, cache, weights, progress)


def _splits(entries: Sequence[Entry]) -> tuple[tuple[Entry, ...], tuple[Entry, ...], tuple[Entry, ...]]:
    """Return what to train on, to set thresholds by, and to report.

    Labels of ForgeryNet's test were never published: the paper's tables are of the validation.
    """
    train, val, test = (tuple(one for one in entries if one.split == of) for of in ("train", "val", "test"))
    return (train, val, test) if test else (train, (), val)


def check_same(place: Path, described: Mapping[str, JsonValue], data_digest: str) -> None:
    """Raise ResultsError where a seed's folder has a run of other data or choices: else it is lost."""
    if not (place / RUN_FILE).is_file():
        return
    there = load_measured(place)
    # As JSON has them, where a tuple is a list.
    wanted = json.loads(json.dumps(described))
    other = [
        f"{name} {there.options.get(name)}" for name in wanted if there.options.get(name) != wanted[name]
    ]
    if there.data_digest != data_digest:
        other.insert(0, f"other data ({there.data})")
    if other:
        raise ResultsError(f"{place} holds a run of {', '.join(other)}: name another folder with --out")


def digest(*facts: object) -> str:
    """Return the SHA-256 of what JSON can hold, hexadecimal."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True, default=list).encode()).hexdigest()

"""Clips of a variant as the stream would see them: distorted where they are yet to be, sampled, cut."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ingest.records import CropPlan
from ingest.sandbox.crops import cut, grid
from updater.benchmark.data.crops import CropReader, MediaFile
from updater.data.layouts.entries import Entry
from updater.data.layouts.listed import Tally
from updater.data.training_data import LabelledCrops
from updater.distortions.clip import Clip, ClipError, to_rgb
from updater.distortions.distortion import DistortionError, Step
from updater.distortions.files import distort_file, generator_of
from updater.distortions.methods import distort
from updater.filters import Picture
from updater.progress import Progress
from updater.training.crop_rows import with_crop_features

MAX_PIXELS = 50_000_000
CPU = torch.device("cpu")

SMALL = CropPlan(patches=4, frames=2, faces=0)
"""of our own clips, which show no faces"""
FRAMES_AT_ONCE = 4
"""of a clip under one distortion: H.264 codes the last of them as it codes a frame within a clip"""


@dataclass(frozen=True)
class Reading:
    """How clips are read, and where what was made of them is kept."""

    plan: CropPlan
    cache: Path
    progress: Progress
    tally: Tally

    def clips(self, what: str, entries: Sequence[Entry]) -> LabelledCrops:
        """Read clips to crops with their forensic features; those that cannot be distorted are counted.

        Raises what `CropReader.read` raises, and OSError.
        """
        files = [
            MediaFile(path, f"{what}/{entry.family}/{entry.path.name}", entry.family, f"{what}/{entry.group}")
            for entry, path in self.files(what, entries)
        ]
        with CropReader(self.plan, self.cache / "crops", self.progress) as reader:
            items = reader.read(what, "deeperforensics", files)
        return self.with_features(what, items)

    def files(self, what: str, entries: Sequence[Entry]) -> list[tuple[Entry, Path]]:
        """Return the file of each clip under its distortions; those that cannot be distorted are counted."""
        pairs = []
        for number, entry in enumerate(entries, 1):
            self.progress(f"{what}: distortions", number, len(entries))
            try:
                pairs.append((entry, materialise(entry, self.cache / "distorted")))
            except (DistortionError, ClipError) as error:
                self.tally.add("clips cannot be distorted, and are left out", error)
        return pairs

    def with_features(self, what: str, items: LabelledCrops) -> LabelledCrops:
        """Return the items with the forensic features of every crop."""
        return with_crop_features(items, CPU, lambda *at: self.progress(f"{what}: features", *at))


def materialise(entry: Entry, cache: Path) -> Path:
    """Return the file of a clip under its distortions; one that it is yet to be given is made once.

    Raises DistortionError, ClipError and OSError.
    """
    if entry.distorted or not entry.distortions:
        return entry.path
    told = " ".join([entry.path.name, *map(str, entry.distortions)])
    facts = hashlib.sha256(told.encode() + hashlib.sha256(entry.path.read_bytes()).digest())
    made = cache / f"{facts.hexdigest()}{entry.path.suffix}"
    if not made.is_file():
        rng = generator_of(0, told)
        distort_file(entry.path, made, entry.distortions, rng, via_xvid=False, max_pixels=MAX_PIXELS)
    return made


@dataclass(frozen=True)
class Excerpt:
    """Some frames in a row of a clip, uint8 RGB [T, H, W, 3]."""

    entry: Entry
    frames: Picture


def of_both_labels(entries: Sequence[Entry], count: int) -> list[Entry]:
    """Choose at most `count` clips, of both labels in turn."""
    turns: dict[int, int] = {}
    ordered = []
    for place, entry in enumerate(entries):
        turns[entry.label] = turns.get(entry.label, 0) + 1
        ordered.append((turns[entry.label], entry.label, place))
    return [entries[place] for place in sorted(place for _, _, place in sorted(ordered)[:count])]


def excerpts(entries: Sequence[Entry]) -> list[Excerpt]:
    """Take the first frames of each clip. Raises ClipError."""
    return [Excerpt(entry, _frames(entry.path)) for entry in entries]


def under(some: Sequence[Excerpt], steps: Sequence[Step], plan: CropPlan) -> LabelledCrops:
    """Distort excerpts in memory and cut their last frame; a clip's draws are its own and the steps'."""

    def cuts() -> Iterator[Picture]:
        for one in some:
            rng = generator_of(0, f"{one.entry.path.name} {' '.join(map(str, steps))}")
            picture = distort(rng, one.frames, steps)[-1]
            height, width = picture.shape[:2]
            yield cut(picture, grid(width, height, plan.crop_px, plan.patches), plan.crop_px)

    crops = list(cuts())
    names = tuple(f"{one.entry.family}/{one.entry.path.name}" for one in some)
    return LabelledCrops(
        ids=names,
        families=tuple(one.entry.family for one in some),
        sources=("deeperforensics",) * len(some),
        groups=tuple(one.entry.group for one in some),
        crops=np.concatenate(crops),
        starts=np.cumsum([0, *map(len, crops)]).astype(np.int64),
    )


def _frames(path: Path) -> Picture:
    frames = []
    for frame in Clip(path, MAX_PIXELS).frames():
        frames.append(to_rgb(frame))
        if len(frames) == FRAMES_AT_ONCE:
            break
    return np.stack(frames)

"""The newcomer's way: a release meets sources that it has never seen, and half of their reals are named.

Release 0 learns from the own stream, as the demonstration's does. Photographs of other sources come, of which
it calls most unknown. A person names half of them real, and a candidate is trained. What is asked of it: that
it calls the other half real, and that forgeries from the same sources, which nobody has named, do not pass
with them. Both releases are made and asked by what serves them: the builder, the exported graph, the gate.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from detector.release.artifact import WEIGHTS, Artifact
from detector.release.manifest import GateParameters
from detector.serving.session import open_session
from memory.records import REAL, split_of
from updater.benchmark.data.crops import CropReader
from updater.benchmark.data.folders import load_sources
from updater.benchmark.data.tasks import hold_back
from updater.benchmark.synthetic.tasks import load_library
from updater.candidate.builder import STAGES, build
from updater.candidate.calibrate import reals
from updater.candidate.draft import Draft, identity_of
from updater.candidate.evaluate import labelled, score_items
from updater.candidate.plan import Parent, load_network, make_plan
from updater.data.layouts.entries import LayoutError
from updater.data.training_data import LabelledCrops, Splits
from updater.progress import Progress
from updater.settings import UpdaterSettings
from updater.training.pools import with_crop_features


@dataclass(frozen=True)
class Media:
    """What the newcomer's way is gone with; every item has its forensic features."""

    library: LabelledCrops
    """the own stream's labelled media, which release 0 learns from"""
    fresh: LabelledCrops
    """more of the same classes, of other photographs and scenes, that nothing is trained on"""
    newcomers: LabelledCrops
    """reals and forgeries of other sources, as SOURCE/real and SOURCE/fake"""


@dataclass(frozen=True)
class Judged:
    """What one release said of n items; every array is [n]."""

    families: NDArray[np.str_]
    sources: NDArray[np.str_]
    """empty for the own stream's"""
    groups: NDArray[np.str_]
    labels: NDArray[np.str_]
    """real, fake or unknown"""
    named: NDArray[np.str_]
    """the forgery family that each is likest"""
    unknown_score: NDArray[np.float32]
    """higher means less familiar"""


@dataclass(frozen=True)
class Way:
    """One newcomer's way: what both releases said of all that neither was made from, in the same order."""

    gates: tuple[GateParameters, GateParameters]
    before: Judged
    after: Judged


def load_media(folder: Path, reader: CropReader, progress: Progress, *, reals: int, each: int) -> Media:
    """Read a folder's sources, and make the own stream's media: so many reals, and so many of each family.

    The own media that nothing is trained on are a quarter of that. Raises what `load_sources` and
    `load_library` raise.
    """
    newcomers = LabelledCrops.join(load_sources(folder, reader))
    library = load_library(reader, "train", reals, each)
    fresh = load_library(reader, "after", reals // 4, each // 4)
    parts = {"library": library, "fresh": fresh, "newcomers": newcomers}
    return Media(**{name: _featured(name, items, progress) for name, items in parts.items()})


def go_all(
    data: Path | None,
    seeds: Sequence[int],
    folder: Path,
    settings: UpdaterSettings,
    progress: Progress,
    reals: int,
    each: int,
) -> list[Way]:
    """Go the newcomer's way once a seed, with a library of so many reals and so many of each family.

    Raises LayoutError, also where no data is given, and what `load_media` raises.
    """
    if data is None:
        raise LayoutError("newcomer needs the folder of its data, and there is no --data")
    with CropReader(cache=folder.parent / "crops", progress=progress) as reader:
        media = load_media(data, reader, progress, reals=reals, each=each)
    return [go(media, seed, folder, settings, progress) for seed in seeds]


def go(media: Media, seed: int, folder: Path, settings: UpdaterSettings, progress: Progress) -> Way:
    """Go the newcomer's way once. seed: of what is dealt where, and of both trainings.

    Groups stay whole: in the halves of the photographs, and on the sides of both releases' data.
    """
    settings = settings.model_copy(update={"seed": seed})
    real = reals(media.newcomers.families)
    photographs = media.newcomers.take(np.flatnonzero(real))
    forgeries = media.newcomers.take(np.flatnonzero(~real))
    to_name, others = hold_back(photographs, 0.5, seed)
    asked = LabelledCrops.join([media.fresh, others, forgeries])
    first = _dealt([media.library], seed)
    release = _release(settings, None, first, folder / f"seed-{seed}" / "before", progress)
    before = _judged(release, asked, progress)
    both = _dealt([media.library, replace(to_name, families=(REAL,) * len(to_name))], seed)
    held = release.manifest
    parent = Parent(release, load_network(release.folder / WEIGHTS, held.architecture, held.classes))
    candidate = _release(settings, parent, both, folder / f"seed-{seed}" / "after", progress)
    after = _judged(candidate, asked, progress)
    return Way((release.manifest.gate, candidate.manifest.gate), before, after)


def _featured(name: str, items: LabelledCrops, progress: Progress) -> LabelledCrops:
    return with_crop_features(items, torch.device("cpu"), lambda *at: progress(f"features of {name}", *at))


def _dealt(parts: Sequence[LabelledCrops], seed: int) -> Splits:
    """Share items out by their groups as the memory does, anew for each seed."""
    items = LabelledCrops.join(parts)
    sides = np.array([split_of(f"{seed}/{group}") for group in items.groups])
    train, calibration, test = (
        items.take(np.flatnonzero(sides == side)) for side in ("train", "calibration", "test")
    )
    return Splits(train, calibration, test)


def _release(
    settings: UpdaterSettings, parent: Parent | None, splits: Splits, folder: Path, progress: Progress
) -> Artifact:
    """Make a release as an update does, up to its manifest."""
    plan = make_plan(settings, parent, splits)
    draft = Draft(folder, plan, settings, progress)
    build(draft, [stage for stage in STAGES if stage.name in ("learn", "calibrate", "export")])
    return Artifact(draft.artifact, draft.manifest(), identity_of(plan, 0))


def _judged(release: Artifact, items: LabelledCrops, progress: Progress) -> Judged:
    manifest = release.manifest
    session = open_session(release, threads=1)
    scored = score_items(session, items, lambda done: progress("judge", done, len(items)))
    labels, named = labelled(scored, manifest.gate, manifest.classes)
    return Judged(
        families=np.array(items.families),
        sources=np.array(items.sources),
        groups=np.array(items.groups),
        labels=labels,
        named=named,
        unknown_score=scored["unknown_score"],
    )

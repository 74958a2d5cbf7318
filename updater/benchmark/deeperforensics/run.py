"""DeeperForensics' protocol over several seeds, each in a folder of its own that is not done again."""

import importlib.metadata
import platform
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from ingest.durable import write_durably
from updater.benchmark.deeperforensics.choices import HIDDEN, Choices, variants_of
from updater.benchmark.deeperforensics.data import Data
from updater.benchmark.deeperforensics.figures import figures
from updater.benchmark.deeperforensics.media import Reading, excerpts, under
from updater.benchmark.deeperforensics.models import forged, train
from updater.benchmark.forgerynet.results import Measured, load_measured
from updater.benchmark.forgerynet.run import check_same, digest
from updater.benchmark.report.outcome import Outcome, Values, values
from updater.benchmark.report.run_folder import RUN_FILE
from updater.data.training_data import LabelledCrops
from updater.distortions.deeperforensics import DEEPERFORENSICS
from updater.distortions.distortion import LEVELS, Step
from updater.progress import Progress
from updater.training.processes import is_first
from updater.training.step import Learnt

BENCHMARK = "deeperforensics"
CLIPS_BY_DISTORTION = 48
"""of the std test, half of them real, under each distortion at each level"""
_PACKAGES = ("numpy", "torch", "timm", "av")


def default_name(choices: Choices, data: Data) -> str:
    """Return a name for a folder of runs: what tables compare, and a digest of all that they follow from."""
    return f"{BENCHMARK}-{choices.model.replace(':', '-')}-{digest(data.digest, choices.described())[:8]}"


@dataclass(frozen=True)
class Media:
    """All clips of a run, read once for all of its seeds; every item has its features."""

    train: Mapping[str, LabelledCrops]
    """by variant"""
    test: Mapping[str, LabelledCrops]
    """by variant, and the hidden test"""
    single: Mapping[str, LabelledCrops]
    """by TYPE:LEVEL, frames of std's test under one distortion"""


def read_media(choices: Choices, data: Data, reading: Reading) -> Media:
    """Read what the choices need. Raises what `Reading.clips` raises, and ClipError."""
    trained = dict.fromkeys(variant for one in choices.train for variant in variants_of(one))
    parts = {one: reading.clips(f"{one} train", data.part(one, "train")) for one in trained}
    tests = {one: reading.clips(f"{one} test", data.part(one, "test")) for one in choices.test}
    if data.hidden:
        tests[HIDDEN] = reading.clips(f"{HIDDEN} test", data.hidden)
    some = excerpts(data.part("std", "test"), CLIPS_BY_DISTORTION)
    steps = [Step(name, level) for name in DEEPERFORENSICS for level in LEVELS]
    single = {}
    for number, step in enumerate(steps):
        reading.progress("each distortion at each level", number, len(steps))
        single[str(step)] = reading.featured(str(step), under(some, [step], reading.plan))
    return Media(parts, tests, single)


def run(
    choices: Choices,
    data: Data,
    seeds: Sequence[int],
    folder: Path,
    *,
    reading: Reading,
    command: tuple[str, ...],
    device: torch.device,
    progress: Progress,
) -> Iterator[Measured]:
    """Run the seeds that the folder does not hold yet; yield what every seed gave.

    Raises ResultsError where the folder holds a run of other data or choices, and what reading raises.
    """
    for seed in seeds:
        check_same(folder / f"seed-{seed}", choices.described(), data.digest)
    media = None
    for seed in seeds:
        place = folder / f"seed-{seed}"
        if (place / RUN_FILE).is_file():
            yield load_measured(place)
            continue
        began = time.monotonic()
        media = media or read_media(choices, data, reading)
        outcome = measure(choices, media, seed, device, progress)
        found = Measured(
            benchmark=BENCHMARK,
            task="",
            data=data.name,
            data_digest=data.digest,
            command=command,
            options=choices.described(),
            versions={"python": platform.python_version()}
            | {package: importlib.metadata.version(package) for package in _PACKAGES},
            device=device.type,
            seed=seed,
            seconds=time.monotonic() - began,
            outcome=outcome.model_copy(update={"notes": (*data.notes, *reading.tally.notes())}),
        )
        if is_first():
            write_durably(place / RUN_FILE, found.model_dump_json(indent=1).encode())
        yield found


def measure(choices: Choices, media: Media, seed: int, device: torch.device, progress: Progress) -> Outcome:
    """Train on each of the choices' trainings with one seed, and test it on everything."""
    table, by_distortion = {}, {}
    for trained in choices.train:
        items = LabelledCrops.join([media.train[one] for one in variants_of(trained)])
        items = _numbered(items)

        def say(stage: str, *at: int, trained: str = trained) -> None:
            progress(f"seed {seed}, {trained}: {stage}", *at)

        learnt = train(choices.model, items, seed, device, say)
        table[trained] = {name: _figures(learnt, test, device) for name, test in media.test.items()}
        if trained == choices.of_distortions:
            by_distortion = {name: _figures(learnt, some, device) for name, some in media.single.items()}
    parameters = sum(one.numel() for one in learnt.network.parameters())
    return Outcome(
        table=table,
        by_distortion=by_distortion,
        about={"parameters": parameters, "by_distortion_trained_on": choices.of_distortions},
    )


def _numbered(items: LabelledCrops) -> LabelledCrops:
    """Return items whose ids are their own: a clip may stand in several variants with the same bytes."""
    return replace(items, ids=tuple(f"{number}/{one}" for number, one in enumerate(items.ids)))


def _figures(learnt: Learnt, items: LabelledCrops, device: torch.device) -> Values:
    labels = np.array([family != "real" for family in items.families], int)
    return values(figures(forged(learnt, items, device), labels), len(items))

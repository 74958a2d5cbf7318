"""The models by name: each is trained on clips, and says of a clip how probably it is forged.

- `forensic` and `frames:NAME` look at what the stream makes of a video: some frames, and crops of each. What
  a network reads of them is averaged over all crops of a clip.
- The paper's networks on videos (C3D, I3D, LSTM and TSN) look at frames in a row, as ForgeryNet's do.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from detector.model.backbone import architecture_of
from detector.model.network import Network
from detector.release.manifest import NO_BACKBONE, Architecture
from ingest.records import CropPlan
from ingest.sandbox.crops import cut, grid
from updater.benchmark.continual.setup import Setup
from updater.benchmark.data.crops import CropReader, MediaFile
from updater.benchmark.deeperforensics.choices import FORENSIC, FRAMES, RunChoices
from updater.benchmark.deeperforensics.tree import SMALL
from updater.benchmark.forgerynet.choices import Choices as ClipChoices
from updater.benchmark.forgerynet.classes import of_videos
from updater.benchmark.forgerynet.sights import Sample, look_at
from updater.benchmark.networks.names import DEEPERFORENSICS
from updater.benchmark.report.harness import Seed
from updater.candidate.gate_inputs import output_of
from updater.data.layouts.entries import Entry
from updater.data.layouts.listed import Tally
from updater.data.training_data import LabelledCrops
from updater.distortions.clip import Clip, ClipError, to_rgb
from updater.distortions.distortion import DistortionError
from updater.distortions.distortion import Step as Distortion
from updater.distortions.files import distort_file, generator_of
from updater.distortions.methods import distort
from updater.filters import Picture
from updater.progress import Progress, with_prefix
from updater.training.crop_rows import with_crop_features
from updater.training.step import Options, Step
from updater.training.two_stages import learn
from updater.training.weights import Weights, choose_weights, put, read_weights

MAX_PIXELS = 50_000_000
CPU = torch.device("cpu")

FRAMES_AT_ONCE = 4
"""of a clip under one distortion: H.264 codes the last of them as it codes a frame within a clip"""


@dataclass(frozen=True)
class Reading:
    """How clips are read, and where derived files are kept."""

    plan: CropPlan
    cache: Path
    progress: Progress
    tally: Tally

    def clips(self, part: str, entries: Sequence[Entry]) -> LabelledCrops:
        """Read clips to crops with their forensic features; those that cannot be distorted are counted.

        Raises what `CropReader.read` raises, and OSError.
        """
        files = [
            MediaFile(path, f"{part}/{entry.family}/{entry.path.name}", entry.family, f"{part}/{entry.group}")
            for entry, path in self.files(part, entries)
        ]
        with CropReader(self.plan, self.cache / "crops", self.progress) as reader:
            reader.tally = self.tally
            items = reader.read(part, "deeperforensics", files)
        return self.with_features(part, items)

    def files(self, part: str, entries: Sequence[Entry]) -> list[tuple[Entry, Path]]:
        """Return the file of each clip under its distortions; those that cannot be distorted are counted."""
        pairs = []
        for number, entry in enumerate(entries, 1):
            self.progress(f"{part}: distortions", number, len(entries))
            try:
                pairs.append((entry, materialise(entry, self.cache / "distorted")))
            except (DistortionError, ClipError) as error:
                self.tally.add("clips cannot be distorted, and are left out", error)
        return pairs

    def with_features(self, part: str, items: LabelledCrops) -> LabelledCrops:
        return with_crop_features(items, CPU, lambda *at: self.progress(f"{part}: features", *at))


def materialise(entry: Entry, cache: Path) -> Path:
    """Return the file of a clip under its distortions; one that it is yet to be given is made once.

    Raises DistortionError, ClipError and OSError.
    """
    if entry.distorted or not entry.distortions:
        return entry.path
    text = " ".join([entry.path.name, *map(str, entry.distortions)])
    facts = hashlib.sha256(text.encode() + hashlib.sha256(entry.path.read_bytes()).digest())
    made = cache / f"{facts.hexdigest()}{entry.path.suffix}"
    if not made.is_file():
        rng = generator_of(0, text)
        distort_file(entry.path, made, entry.distortions, rng, via_xvid=False, max_pixels=MAX_PIXELS)
    return made


def of_both_labels(entries: Sequence[Entry], count: int) -> list[Entry]:
    """Choose at most `count` clips, of both labels in turn."""
    fake = np.array([entry.label for entry in entries], bool)
    turns = np.where(fake, fake.cumsum(), (~fake).cumsum())
    return [entries[place] for place in sorted(np.lexsort((fake, turns))[:count])]


def excerpts(entries: Sequence[Entry]) -> list[tuple[Entry, Picture]]:
    """Return the clips with their first frames, uint8 RGB [T, H, W, 3]. Raises ClipError."""
    clips = (islice(Clip(entry.path, MAX_PIXELS).frames(), FRAMES_AT_ONCE) for entry in entries)
    return [(of, np.stack([*map(to_rgb, clip)])) for of, clip in zip(entries, clips, strict=True)]


def under(
    some: Sequence[tuple[Entry, Picture]], steps: Sequence[Distortion], plan: CropPlan
) -> LabelledCrops:
    """Distort excerpts in memory and cut their last frame; a clip's draws are its own and the steps'."""
    crops = []
    for of, frames in some:
        rng = generator_of(0, f"{of.path.name} {' '.join(map(str, steps))}")
        picture = distort(rng, frames, steps)[-1]
        height, width = picture.shape[:2]
        crops.append(cut(picture, grid(width, height, plan.crop_px, plan.patches), plan.crop_px))
    return LabelledCrops(
        ids=tuple(f"{of.family}/{of.path.name}" for of, _ in some),
        families=tuple(of.family for of, _ in some),
        sources=("deeperforensics",) * len(some),
        groups=tuple(of.group for of, _ in some),
        crops=np.concatenate(crops),
        starts=np.cumsum([0, *map(len, crops)]).astype(np.int64),
    )


T = TypeVar("T")


@dataclass(frozen=True)
class Rater(Generic[T]):
    """A model that was trained."""

    parameters: int
    forged: Callable[[T], NDArray[np.float64]]
    """how probably each clip is forged, [n]"""


class Model(Protocol[T]):
    """How clips are read for a model, and how it is trained on them."""

    def read(self, part: str, entries: Sequence[Entry]) -> T:
        """Read clips, under their distortions; those that cannot be distorted or decoded are counted."""

    def under_each(self, entries: Sequence[Entry], steps: Sequence[Distortion]) -> dict[str, T]:
        """Read undistorted clips under one distortion at a time, by TYPE:LEVEL."""

    def labels(self, clips: T) -> NDArray[np.int64]:
        """Return 1 for a forged clip, 0 for a real one, [n]."""

    def train(self, parts: Sequence[T], name: str, seed: Seed) -> Rater[T]:
        """Train on real and forged clips of all parts. name: of the training."""


def model_of(
    choices: RunChoices, device: torch.device, weights: Path | None
) -> tuple[RunChoices, Callable[[Reading], Model[Any]]]:
    """Return the choices with the digest of the weights, and what makes their model of a reading.

    weights: a file to begin with. A network that begins with weights is made once, to see that they fit.
    Raises NetworkError, BackboneError and WeightsError.
    """
    import updater.benchmark.networks.backbones  # noqa: F401 - timm knows them then; it takes seconds

    begins = weights is not None or choices.pretrained
    make: Callable[[Reading], Model[Any]]
    if choices.model.partition(":")[0] in DEEPERFORENSICS:
        clips = ClipChoices.usual("video", choices.model, synthetic=choices.synthetic)
        clips = replace(
            clips, augmentation="weak", pretrained=choices.pretrained, checkpoint=choices.checkpoint
        )
        if begins:
            of_videos(clips, 2, device, weights).make()
        make = partial(OnClips, clips, device, weights)
    else:
        name = choices.model.removeprefix(FRAMES)
        begun = choose_weights(name, weights, choices.pretrained) if begins else None
        make = partial(OnCrops, choices.model, device, begun)
        if begun is not None:
            put(Network(architecture(choices.model, SMALL.crop_px), 2), begun, ("real", "fake"))
    return replace(choices, checkpoint=read_weights(weights).digest if weights else None), make


def architecture(model: str, crop_px: int) -> Architecture:
    """Return the network on crops of the model's name. Raises BackboneError."""
    if model == FORENSIC:
        return Architecture(backbone=NO_BACKBONE, crop_px=crop_px)
    return architecture_of(model.removeprefix(FRAMES), crop_px=crop_px, forensic=False)


@dataclass(frozen=True)
class OnCrops:
    """A network on crops as the stream cuts them."""

    name: str
    device: torch.device
    begun: Weights | None
    reading: Reading

    def read(self, part: str, entries: Sequence[Entry]) -> LabelledCrops:
        """Read clips to crops with their forensic features."""
        return self.reading.clips(part, entries)

    def under_each(self, entries: Sequence[Entry], steps: Sequence[Distortion]) -> dict[str, LabelledCrops]:
        """Distort excerpts of the clips in memory, and cut their last frame."""
        some, plan = excerpts(entries), self.reading.plan
        return {str(step): self.reading.with_features(str(step), under(some, [step], plan)) for step in steps}

    def labels(self, clips: LabelledCrops) -> NDArray[np.int64]:
        return np.array([family != "real" for family in clips.families], np.int64)

    def train(self, parts: Sequence[LabelledCrops], name: str, seed: Seed) -> Rater[LabelledCrops]:
        """Train on real and forged clips of all parts."""
        items = LabelledCrops.join(parts)
        # A clip may stand in several variants with the same bytes: here each has an id of its own.
        items = replace(items, ids=tuple(f"{number}/{item}" for number, item in enumerate(items.ids)))
        options = Options(exposure="none", distillation=0.0)
        setup = Setup(options=options, architecture=architecture(self.name, items.crops.shape[1]))
        learnt = learn(
            Step(
                items,
                ("real", *sorted(set(items.families) - {"real"})),
                setup.architecture,
                options=setup.options,
                recipe=setup.recipe(len(items), first=True),
                seed=seed.number,
                device=self.device,
                start_from=self.begun,
                progress=with_prefix(seed.progress, name),
            )
        )
        real = learnt.classes.index("real")

        def p_forged(clips: LabelledCrops) -> NDArray[np.float64]:
            logits = output_of(learnt.network, clips, self.device, "clips", lambda *at: None).logits
            return np.asarray(1 - torch.softmax(logits.double(), 1)[:, real].numpy())

        return Rater(sum(weights.numel() for weights in learnt.network.parameters()), p_forged)


@dataclass(frozen=True)
class OnClips:
    """One of the paper's networks on frames in a row."""

    choices: ClipChoices
    device: torch.device
    weights: Path | None
    reading: Reading

    def read(self, part: str, entries: Sequence[Entry]) -> Sequence[Sample]:
        """Return the clips that can be decoded, each with its number of frames."""
        clips = [
            replace(entry, path=path, distortions=()) for entry, path in self.reading.files(part, entries)
        ]
        return look_at(
            clips, "video", self.reading.cache, self.reading.tally, partial(self.reading.progress, part)
        )

    def under_each(
        self, entries: Sequence[Entry], steps: Sequence[Distortion]
    ) -> dict[str, Sequence[Sample]]:
        """Distort the network's view of each clip in memory."""
        sights = self.read("each distortion at each level", entries)
        return {
            str(step): [
                replace(sight, entry=replace(sight.entry, distortions=(step,), distorted=False))
                for sight in sights
            ]
            for step in steps
        }

    def labels(self, clips: Sequence[Sample]) -> NDArray[np.int64]:
        return np.array([sight.entry.label for sight in clips], np.int64)

    def train(self, parts: Sequence[Sequence[Sample]], name: str, seed: Seed) -> Rater[Sequence[Sample]]:
        """Train on real and forged clips of all parts."""
        clips = [sight for part in parts for sight in part]
        classifier = of_videos(self.choices, 2, self.device, self.weights)
        network = classifier.train(
            clips,
            self.labels(clips),
            seed=seed.number,
            device=self.device,
            checkpoint=seed.parts / f"{name}.safetensors",
            progress=partial(seed.progress, f"training on {name}"),
        )
        progress = partial(seed.progress, f"{name}: test")
        return Rater(
            sum(weights.numel() for weights in network.parameters()),
            lambda rows: classifier.probabilities(network, rows, self.device, progress)[:, 1],
        )

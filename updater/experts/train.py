"""An expert of one's own, trained on labelled folders, DIR/FAMILY/{0_real,1_fake}/FILE.

Whole families, sources with their generators, are held back. Each family weighs the same, and within it reals
and forgeries do. What is kept is the network with the highest mean AUC on the families held back, which are
never trained on.
"""

import hashlib
import json
import math
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, ImageFilter
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from detector.model.backbone import make_backbone, shown_to
from detector.model.network import PlainFrontEnd
from ingest.durable import file_aside
from ingest.records import CropPlan, MediaPlan
from ingest.sandbox.decode import DecodeError, image_frames
from ingest.sandbox.extract import extract
from ingest.settings import IngestSettings
from updater.data.layouts.listed import subfolders
from updater.draws import SeedPurpose
from updater.experts.build import classifier_of
from updater.experts.check import ExpertError
from updater.measures import auroc
from updater.outliers.exposure import compress_jpeg
from updater.progress import Progress, no_progress
from updater.training.crop_rows import as_images, in_turn
from updater.training.fit import Checkpoint, Descent, TrainingStage, fit
from updater.training.weights import Weights, put_backbone

KINDS = {"0_real": False, "1_fake": True}
_LEAST = 8
"""files of a kind, below which a family says nothing"""
_MOST_CROPS = 4
"""of a picture that is held back"""


@dataclass(frozen=True)
class Family:
    """A source with its generator: its real files and its forged ones."""

    name: str
    files: tuple[tuple[Path, ...], tuple[Path, ...]]
    """reals, fakes"""


def families_in(folder: Path) -> list[Family]:
    """Return the families of a folder, at least two. Raises ExpertError."""
    known = []
    for place in subfolders(folder):
        files: tuple[list[Path], list[Path]] = ([], [])
        for path in sorted(place.rglob("*")):
            kinds = [KINDS[part] for part in path.relative_to(place).parts[:-1] if part in KINDS]
            if kinds and path.is_file() and not path.name.startswith("."):
                files[kinds[0]].append(path)
        if min(map(len, files)) >= _LEAST:
            known.append(Family(place.name, (tuple(files[0]), tuple(files[1]))))
    if not known:
        raise ExpertError(
            f"{folder} holds no FAMILY/0_real/FILE and FAMILY/1_fake/FILE, {_LEAST} of each at least"
        )
    if len(known) == 1:
        raise ExpertError(
            f"{folder} has the family {known[0].name} alone, and a whole family is held back to stop by: add"
            " another source with its generator"
        )
    return known


def split_families(
    families: Sequence[Family], hold: Sequence[str], seed: int
) -> tuple[list[Family], list[Family]]:
    """Return the families to train on and those held back: those named, else one in five, drawn by the seed.

    Raises ExpertError.
    """
    names = [family.name for family in families]
    if unknown := sorted(set(hold) - set(names)):
        raise ExpertError(f"--hold {unknown[0]} is no family here: choose of {', '.join(names)}")
    if not hold:
        drawn = np.random.default_rng(seed).permutation(len(names))
        hold = [names[place] for place in drawn[: max(1, len(names) // 5)]]
    trained = [family for family in families if family.name not in hold]
    if not trained:
        raise ExpertError(f"all of {', '.join(names)} are held back: leave some to train on")
    return trained, [family for family in families if family.name in hold]


def pixels_of(path: Path) -> NDArray[np.uint8]:
    """Return a picture, uint8 [H, W, 3]. Raises ExpertError."""
    try:
        frame = next(image_frames(path.read_bytes(), 1, IngestSettings().max_pixels))
    except (DecodeError, OSError) as error:
        raise ExpertError(f"{path} gives no picture ({' '.join(str(error).split())}): remove it") from error
    return frame.pixels


def crops_of(family: Family, side_px: int, most: int) -> Iterator[tuple[bool, NDArray[np.uint8]]]:
    """Yield whether each picture is forged, with a release's crops of it; at most so many of a kind."""
    plan = MediaPlan(crops=CropPlan(crop_px=side_px, patches=_MOST_CROPS, face_patches=0))
    for forged, files in enumerate(family.files):
        for path in files[:most]:
            try:
                yield bool(forged), extract(path.read_bytes(), plan, IngestSettings().max_pixels).crops
            except (DecodeError, OSError) as error:
                raise ExpertError(f"{path} gives no picture ({error}): remove it") from error


MEASURED_EVERY = 100
"""steps"""
_RATE, _RATE_OF_WEIGHTS, _DECAY = 1e-3, 3e-4, 0.01
_HELD_ITEMS = 200
"""of a family and kind, that the network is measured on"""
_CPU = torch.device("cpu")
_WARM_UP = 0.1
"""of the steps, in which the rate rises"""


@dataclass(frozen=True)
class ExpertRun:
    """How an expert is trained."""

    architecture: str
    steps: int
    batch: int = 32
    side_px: int = 128
    seed: int = 0
    hold: tuple[str, ...] = ()
    """families held back; empty: one in five"""
    device: torch.device = _CPU


@dataclass(frozen=True)
class BestStep:
    """The best step so far, and its AUC of each family held back."""

    step: int
    aucs: dict[str, float]

    @property
    def mean(self) -> float:
        return float(np.mean([*self.aucs.values()]))


class _Network(nn.Module):
    def __init__(self, architecture: str, side_px: int, begun: Weights | None) -> None:
        super().__init__()
        normalisation = shown_to(architecture)
        self.front = PlainFrontEnd(normalisation.mean, normalisation.deviation)
        self.backbone, width = make_backbone(architecture, 3, side_px)
        self.head = nn.Linear(width, 1)
        if begun is not None:
            prefix = classifier_of(self.backbone)
            state = {name: v for name, v in begun.tensors.items() if not name.startswith(prefix)}
            put_backbone(self.backbone, architecture, side_px, Weights(begun.origin, state))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.backbone(self.front(images)))[:, 0]
        return logits

    def tensors(self) -> dict[str, Tensor]:
        """Return the state as timm names it, with the head in the classifier's place."""
        head = {classifier_of(self.backbone) + k: v for k, v in self.head.state_dict().items()}
        state = self.backbone.state_dict() | head
        return {name: value.detach().cpu().contiguous() for name, value in state.items()}


def train_expert(
    folder: Path,
    out: Path,
    training: ExpertRun,
    begun: Weights | None = None,
    progress: Progress = no_progress,
) -> BestStep:
    """Train an expert on a folder, write it to out, and return its figures on held-back families.

    begun: weights to begin with; None: at random. What lies beside out of an interrupted training of the same
    is gone on from. Raises ExpertError, WeightsError and BackboneError.
    """
    trained, held = split_families(families_in(folder), training.hold, training.seed)
    torch.manual_seed(training.seed)
    network = _Network(training.architecture, training.side_px, begun).to(training.device)
    held_crops = [(family.name, [*crops_of(family, training.side_px, _HELD_ITEMS)]) for family in held]
    identity = _identity(folder, [*trained, *held], training, begun)
    checkpoint = Checkpoint(out.with_suffix(".training"), identity, ("expert",))
    rate = _RATE if begun is None else _RATE_OF_WEIGHTS
    optimiser = torch.optim.AdamW(network.parameters(), rate, weight_decay=_DECAY)
    best = _best(out, identity)

    def set_rate(step: int) -> None:
        falls = 0.5 * (1 + math.cos(math.pi * step / training.steps))
        for group in optimiser.param_groups:
            group["lr"] = rate * min(step / training.steps / _WARM_UP, falls)

    def loss(batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.binary_cross_entropy_with_logits(network(batch[0]), batch[1])

    for end in [*range(MEASURED_EVERY, training.steps, MEASURED_EVERY), training.steps]:
        descent = Descent(optimiser, end, set_rate, longest=1.0)
        network.train()
        fit(
            network,
            lambda steps: _batches(trained, training, steps),
            loss,
            descent,
            TrainingStage(checkpoint, "expert"),
            lambda done, _: progress("train the expert", done, training.steps),
        )
        candidate = BestStep(end, {name: _auc(network, crops, training.device) for name, crops in held_crops})
        progress(f"held back {candidate.mean:.3f} at step {end}", end, training.steps)
        if best is None or (candidate.mean > best.mean and candidate.step > best.step):
            best = candidate
            about = {"architecture": training.architecture, "px": str(training.side_px), "identity": identity}
            about |= {"held_back": json.dumps([best.step, best.aucs])}
            if begun is not None and begun.licence:
                about["license"] = begun.licence
            with file_aside(out) as aside:
                save_file(network.tensors(), aside, about)
    checkpoint.remove()
    assert best is not None
    return best


def _batches(
    families: Sequence[Family], training: ExpertRun, steps: range
) -> Generator[tuple[Tensor, Tensor], None, None]:
    def make_batch(step: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
        rng = SeedPurpose.EXPERT_BATCHES.generator(training.seed, step)
        targets = rng.permutation(np.arange(training.batch) % 2)
        crops = []
        for forged in targets:
            files = families[int(rng.integers(len(families)))].files[forged]
            crops.append(augment(rng, pixels_of(files[int(rng.integers(len(files)))]), training.side_px))
        return np.stack(crops), targets.astype(np.float32)

    with ThreadPoolExecutor(2) as pool:
        for crops, targets in in_turn(pool, make_batch, steps, 4):
            yield as_images(crops, training.device), torch.from_numpy(targets).to(training.device)


def _auc(network: _Network, items: list[tuple[bool, NDArray[np.uint8]]], device: torch.device) -> float:
    network.eval()
    with torch.inference_mode():
        logits = [float(network(as_images(crops, device)).mean()) for _, crops in items]
    forged = np.array([kind for kind, _ in items], bool)
    return auroc(np.array(logits)[forged], np.array(logits)[~forged])


def _identity(folder: Path, families: Sequence[Family], training: ExpertRun, begun: Weights | None) -> str:
    """Return a SHA-256 of all that a training follows from; files by name and size."""
    files = [
        [path.relative_to(folder).as_posix(), path.stat().st_size]
        for family in families
        for kind in family.files
        for path in kind
    ]
    made = {name: v for name, v in vars(training).items() if name != "device"}
    follows = [made, files, begun and begun.digest]
    return hashlib.sha256(json.dumps(follows, sort_keys=True).encode()).hexdigest()


def _best(out: Path, identity: str) -> BestStep | None:
    """Return the best step of an interrupted training of the same."""
    try:
        with safe_open(out, "pt") as file:
            about = file.metadata() or {}
    except (OSError, SafetensorError):
        return None
    if about.get("identity") != identity:
        return None
    return BestStep(*json.loads(about["held_back"]))


_RESIZED, _SCALES = 0.25, (0.5, 1.25)
_BLURRED, _SIGMA = 0.1, 3.0
_NOISED, _GRAIN = 0.1, 6.0
_SAVED, _QUALITIES = 0.5, (30, 100)


def augment(rng: np.random.Generator, pixels: NDArray[np.uint8], side_px: int) -> NDArray[np.uint8]:
    """Return a random crop, uint8 [H, W, 3] → [S, S, 3], resized, blurred, made noisy or saved by chance.

    Blur of sigma 0 to 3, JPEG of quality 30 to 100, a random crop and a flip: Wang et al. 2020,
    "CNN-generated images are surprisingly easy to spot... for now", section 3.2, with its chances of .1 for
    blur and .5 for JPEG. The resize before them: Gragnaniello et al. 2021, "Are GAN generated images easy to
    detect?". Noise of deviation 0 to 6 is ours. A picture smaller than the crop is reflected at its edges.
    """
    picture = Image.fromarray(pixels)
    if rng.random() < _RESIZED:
        scale = rng.uniform(*_SCALES)
        size = [max(round(side * scale), min(side, side_px)) for side in picture.size]
        picture = picture.resize((size[0], size[1]), Image.Resampling.BICUBIC)
    left, top = (int(rng.integers(max(side - side_px, 0) + 1)) for side in picture.size)
    crop = np.asarray(picture)[top : top + side_px, left : left + side_px]
    lacking = [(0, side_px - side) for side in crop.shape[:2]]
    crop = np.pad(crop, (*lacking, (0, 0)), "symmetric")
    if rng.random() < _BLURRED:
        blur = ImageFilter.GaussianBlur(rng.uniform(0, _SIGMA))
        crop = np.asarray(Image.fromarray(crop).filter(blur))
    if rng.random() < _NOISED:
        grain = rng.normal(0, rng.uniform(0, _GRAIN), crop.shape)
        crop = np.rint(crop + grain).clip(0, 255).astype(np.uint8)
    if rng.random() < _SAVED:
        crop = compress_jpeg(crop, int(rng.integers(_QUALITIES[0], _QUALITIES[1] + 1)))
    return np.ascontiguousarray(crop[:, ::-1] if rng.random() < 0.5 else crop)

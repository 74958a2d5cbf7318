"""The stream that a benchmark's name, its data and a few options stand for, and its forensic features."""

import io
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from PIL import Image
from scipy.ndimage import gaussian_filter

from ingest.records import CropPlan
from updater.benchmark.continual.presets import BLUR_JPEG
from updater.benchmark.data.crops import ChangedMediaError, CropReader, MediaFile, stored_features
from updater.benchmark.data.folders import load_folders
from updater.benchmark.data.forgery_sets import load_cddb, load_families, sequence_of
from updater.benchmark.data.tasks import PARTS, Stream, Task, media_digest
from updater.data.layouts.entries import LayoutError
from updater.data.layouts.layouts import LAYOUTS, read_layout
from updater.data.stored_rows import Collected, StoredRows
from updater.data.training_data import LabelledCrops
from updater.filters import Picture, jpeg, to_picture
from updater.progress import Progress, with_prefix

# Files are listed without torch, which takes seconds to load.
if TYPE_CHECKING:
    import torch

    from updater.benchmark.continual.setup import Setup

Which = Literal["cddb", "opencil", "synthetic", "deepfakebench", "dfdc", "faceforensics"]

_FEW_SHOTS_STRIDE_PX = 64


class _ListedError(Exception):
    """All files are listed."""


class _Lister(CropReader):
    def read(self, stage: str, source: str, files: Sequence[MediaFile]) -> LabelledCrops:
        raise _ListedError


@dataclass(frozen=True)
class Dataset:
    """Where a stream comes from, and how it is cut into steps.

    sequence: of CDDB's layout the tasks, of OpenCIL's lists whose. base, increment: of OpenCIL's layout, the
    classes of the first step and of each that follows. crop_px, crops: side of a crop, and how many a picture
    gives at most. calibration_share: of the training items of each class, held back to set thresholds by;
    None: the layout's default. leave_out: whether each family is left out once, where no outliers are there.
    """

    which: Which
    data: Path | None = None
    sequence: str = "easy"
    base: int = 10
    increment: int = 10
    crop_px: int = 128
    crops: int = CropPlan().patches
    calibration_share: float | None = None
    leave_out: bool = True

    @property
    def plan(self) -> CropPlan:
        """How media is cut: the own stream's as a release cuts it; others' few shots with overlap."""
        stride_px = None if self.which == "synthetic" else _FEW_SHOTS_STRIDE_PX * self.crop_px // 128
        return CropPlan(crop_px=self.crop_px, patches=self.crops, stride_px=stride_px)

    def check(self) -> None:
        """List its files and look at their sizes, without torch. Raises as `read` does before it decodes."""
        if self.which != "synthetic":
            with suppress(_ListedError):
                self.read(_Lister(self.plan))
        left_out = self.leave_out and self.which == "cddb"
        if left_out and len(sequence_of(self.data or Path(), self.sequence)) < 2:
            raise LayoutError("one task cannot be left out of one: name more tasks, or leave none out")

    def open(
        self, setup: "Setup", cache: Path, progress: Progress, tell: Callable[[str], None]
    ) -> CropReader:
        """Return what reads it: without pixels where a run looks at features alone.

        OpenCIL's layout leaves no family out; else the plain network beside each looks at pixels.
        """
        from updater.experts.look import picture_plan_of

        pixels = not setup.reads_features_alone or (self.leave_out and self.which != "opencil")
        picture = picture_plan_of(setup.experts)
        return CropReader(self.plan, cache, progress, picture=picture, tell=tell, pixels=pixels)

    def read(self, reader: CropReader) -> Stream:
        """Read it. OpenCIL also takes CDDB's layout: the families not yet learnt are its outliers.

        Raises LayoutError, also where no folder is given, and what a layout's own reader raises.
        """
        if self.which == "synthetic":
            if self.calibration_share is not None:
                raise LayoutError(
                    "the own stream has its calibration items apart, and published runs hold none back:"
                    " a --preset is of cddb or opencil"
                )
            from updater.benchmark.synthetic.tasks import load_synthetic

            return load_synthetic(reader)
        if self.data is None or not self.data.is_dir():
            given = f"{self.data} is none" if self.data else "there is no --data"
            raise LayoutError(f"{self.which} needs the folder of its data, and {given}")
        share = self.calibration_share
        held: dict[str, Any] = {} if share is None else {"calibration_share": share}
        if self.which == "cddb":
            return load_cddb(self.data, self.sequence, reader, **held)
        if self.which in LAYOUTS:
            return load_families(read_layout(self.which, self.data), reader, **held)
        if any((self.data / name).is_dir() for name in ("id", "ood", "benchmark_imglist")):
            held |= {"base": self.base, "increment": self.increment, "imglists": self.sequence}
            return load_folders(self.data, reader, **held)
        if not any(path.is_dir() for path in self.data.glob("*/train")):
            raise LayoutError(
                f"{self.data} holds neither id/CLASS and ood/NAME nor benchmark_imglist (OpenCIL) nor"
                " TASK/{train,val}/[CLASS/]{0_real,1_fake} (CDDB): lay it out as one of them"
            )
        return load_cddb(self.data, self.sequence, reader, unseen=True, **held)


def distort_items(items: LabelledCrops, stream: Stream, text: str) -> LabelledCrops:
    """Return items read anew from their files, each picture distorted whole, before it is cut.

    text: TYPE:LEVEL; or "blur-jpeg", a Gaussian blur for every other picture and JPEG for every other one, by
    lot, as in Wang et al. 2020, "CNN-generated images are surprisingly easy to spot... for now" and in CDDB's
    table 12. Raises ChangedMediaError, UnreadableMediaError and SandboxUnavailableError.
    """
    from updater.distortions.files import generator_of
    from updater.distortions.methods import distort, step

    name, _, level = text.partition(":")
    steps = [] if name == BLUR_JPEG else [step(name, int(level))]
    rows, counts = Collected(), [0]
    assert stream.folder is not None
    with CropReader(stream.plan) as reader:
        for item in items.ids:
            path, rng, coded = stream.folder / item.rpartition("@")[0], generator_of(0, item), io.BytesIO()
            digest, pixels = reader.whole(path)
            if digest != media_digest(item):
                raise ChangedMediaError(f"{path} changed while it was measured: run again")
            distorted = distort(rng, pixels[None], steps) if steps else blur_jpeg(rng, pixels[None])
            Image.fromarray(distorted[0]).save(coded, "PNG")
            ((_, decoded),) = reader.decode(iter([(str(path), coded.getvalue())]))
            rows.add(decoded.crops)
            counts.append(len(decoded.crops))
    return replace(items, crops=rows.rows(), starts=np.cumsum(counts), features=None, crop_features=None)


def blur_jpeg(rng: np.random.Generator, pictures: Picture) -> Picture:
    """Blur uint8 RGB [1, H, W, 3] by 0 to 3 px in one of two cases, and code it as JPEG in one of two."""
    if rng.random() < 0.5:
        sigma = rng.uniform(0, 3)
        pictures = gaussian_filter(pictures, (0, sigma, sigma, 0))
    if rng.random() < 0.5:
        quality = int(rng.integers(30, 100, endpoint=True))
        pictures = to_picture(jpeg(pictures.astype(np.float32), quality))
    return pictures


def with_features(stream: Stream, setup: "Setup", progress: Progress, frozen: Path | None = None) -> Stream:
    """Return the stream with every crop's forensic features, computed once, whatever is trained on it.

    And with its experts' logits, kept in the folder `frozen`. Parts that have the features keep them.
    """
    from updater.experts.look import with_expert_logits

    def change(name: str, part: LabelledCrops) -> LabelledCrops:
        say = with_prefix(progress, name)
        part = part_with_features(part, setup.torch_device, partial(say, "forensic features"))
        return with_expert_logits(part, setup.experts, frozen, say)

    def with_rows(task: Task) -> Task:
        parts: dict[str, Any] = {of: change(f"{task.name}, {of}", getattr(task, of)) for of in PARTS}
        return replace(task, **parts)

    outliers = tuple(replace(of, items=change(of.name, of.items)) for of in stream.outliers)
    return replace(stream, tasks=tuple(map(with_rows, stream.tasks)), outliers=outliers)


def part_with_features(
    part: LabelledCrops, device: "torch.device", progress: Callable[[int, int], None]
) -> LabelledCrops:
    """Return items with every crop's forensic features, kept beside the crops where these lie in a cache."""
    from updater.training.crop_rows import with_crop_features

    crops = part.crops
    if part.crop_features is None and isinstance(crops, StoredRows) and all(not s.held for s in crops.shards):
        return replace(part, crop_features=stored_features(crops, device, progress))
    return with_crop_features(part, device, progress)

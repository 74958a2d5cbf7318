"""The stream that a benchmark's name, its data and a few options stand for, and its forensic features."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from ingest.records import CropPlan
from updater.benchmark.continual.setup import Setup
from updater.benchmark.data.crops import CropReader, stored_features
from updater.benchmark.data.folders import load_folders
from updater.benchmark.data.forgery_sets import load_cddb, load_families, with_unseen_families
from updater.benchmark.data.tasks import PARTS, Stream, Task
from updater.benchmark.synthetic.tasks import load_synthetic
from updater.data.layouts.entries import LayoutError
from updater.data.layouts.layouts import LAYOUTS, read_layout
from updater.data.stored_rows import StoredRows
from updater.data.training_data import LabelledCrops
from updater.experts.look import picture_plan_of, with_expert_logits
from updater.progress import Progress, with_prefix
from updater.training.crop_rows import with_crop_features

Which = Literal["cddb", "opencil", "synthetic", "deepfakebench", "dfdc", "faceforensics"]

_FEW_SHOTS_STRIDE_PX = 64


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

    def open(self, setup: Setup, cache: Path, progress: Progress, tell: Callable[[str], None]) -> CropReader:
        """Return what reads it: without pixels where a run looks at features alone.

        OpenCIL's layout leaves no family out; else the plain network beside each looks at pixels.
        """
        pixels = not setup.reads_features_alone or (self.leave_out and self.which != "opencil")
        return CropReader(self.plan, cache, progress, 2, picture_plan_of(setup.experts), tell, pixels=pixels)

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
            return load_synthetic(reader)
        if self.data is None:
            raise LayoutError(f"{self.which} needs the folder of its data")
        held: dict[str, Any] = {}
        if self.calibration_share is not None:
            held["calibration_share"] = self.calibration_share
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
        known = load_cddb(self.data, self.sequence, reader, **held)
        return with_unseen_families(known, self.data, reader)


def with_features(stream: Stream, setup: Setup, progress: Progress, frozen: Path | None = None) -> Stream:
    """Return the stream with every crop's forensic features, computed once, whatever is trained on it.

    And with its experts' logits, kept in the folder `frozen`. Parts that have the features keep them.
    """

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
    part: LabelledCrops, device: torch.device, progress: Callable[[int, int], None]
) -> LabelledCrops:
    """Return items with every crop's forensic features, kept beside the crops where these lie in a cache."""
    crops = part.crops
    if part.crop_features is None and isinstance(crops, StoredRows) and all(not s.held for s in crops.shards):
        return replace(part, crop_features=stored_features(crops, device, progress))
    return with_crop_features(part, device, progress)

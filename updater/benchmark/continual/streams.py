"""The stream that a benchmark's name, its data and a few options stand for, and its forensic features."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch

from ingest.records import CropPlan
from updater.benchmark.continual.setup import Setup
from updater.benchmark.data.crops import CropReader, stored_features
from updater.benchmark.data.folders import load_folders
from updater.benchmark.data.forgery_sets import load_cddb, load_families, with_unseen_families
from updater.benchmark.data.tasks import Stream, Task
from updater.benchmark.synthetic.tasks import load_synthetic
from updater.data.layouts.entries import LayoutError
from updater.data.layouts.layouts import LAYOUTS, read_layout
from updater.data.stored_rows import StoredRows
from updater.data.training_data import LabelledCrops
from updater.experts.look import with_expert_logits
from updater.progress import Progress
from updater.training.crop_rows import with_crop_features

Which = Literal["cddb", "opencil", "synthetic", "deepfakebench", "dfdc", "faceforensics"]

_FEW_SHOTS_STRIDE_PX = 64


@dataclass(frozen=True)
class Dataset:
    """Where a stream comes from, and how it is cut into steps."""

    which: Which
    data: Path | None = None
    sequence: str = "easy"
    """of CDDB's layout: the tasks"""
    base: int = 10
    """of OpenCIL's layout: the classes of the first step"""
    increment: int = 10
    """and of each that follows"""
    crop_px: int = 128
    """side of a crop"""
    calibration_share: float | None = None
    """of the training items of each class, held back to set thresholds by; None: the layout's default"""

    @property
    def plan(self) -> CropPlan:
        """How media is cut: the own stream's as a release cuts it; others' few shots with overlap."""
        stride_px = None if self.which == "synthetic" else _FEW_SHOTS_STRIDE_PX * self.crop_px // 128
        return CropPlan(crop_px=self.crop_px, stride_px=stride_px)

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
        if (self.data / "id").is_dir() or (self.data / "ood").is_dir():
            return load_folders(self.data, reader, base=self.base, increment=self.increment, **held)
        if not any(path.is_dir() for path in self.data.glob("*/train")):
            raise LayoutError(
                f"{self.data} holds neither id/CLASS and ood/NAME (OpenCIL) nor"
                " TASK/{train,val}/[CLASS/]{0_real,1_fake} (CDDB): lay it out as one of them"
            )
        known = load_cddb(self.data, self.sequence, reader, **held)
        return with_unseen_families(known, self.data, reader)


def with_features(stream: Stream, setup: Setup, progress: Progress, frozen: Path | None = None) -> Stream:
    """Return the stream with every crop's forensic features, computed once, whatever is trained on it.

    And with its experts' logits, kept in the folder `frozen`. Parts that have the features keep them.
    """
    device = setup.torch_device
    with_crops = _in_every_part(
        stream,
        lambda part, say: part_with_features(part, device, say),
        lambda part: len(part.crops) if part.crop_features is None else 0,
        "forensic features",
        progress,
    )
    if setup.experts:
        with_crops = _in_every_part(
            with_crops,
            lambda part, say: with_expert_logits(part, setup.experts, frozen, lambda _, *at: say(*at)),
            lambda part: len(part.crops),
            "experts",
            progress,
        )
    return with_crops


def _in_every_part(
    stream: Stream,
    change: Callable[[LabelledCrops, Callable[[int, int], None]], LabelledCrops],
    amount: Callable[[LabelledCrops], int],
    stage: str,
    progress: Progress,
) -> Stream:
    """Change each part of a stream; `amount` is the total of its progress, which `change` reports."""
    parts = [part for task in stream.tasks for part in (task.train, task.calibration, task.test)]
    parts += [outlier.items for outlier in stream.outliers]
    total, done = sum(amount(part) for part in parts), 0
    changed: list[LabelledCrops] = []
    for part in parts:
        before = done

        def say(now: int, _: int, before: int = before) -> None:
            progress(stage, before + now, total)

        changed.append(change(part, say))
        done += amount(part)
    ready = iter(changed)
    tasks = tuple(Task(task.name, next(ready), next(ready), next(ready)) for task in stream.tasks)
    outliers = tuple(replace(outlier, items=next(ready)) for outlier in stream.outliers)
    return replace(stream, tasks=tasks, outliers=outliers)


def part_with_features(
    part: LabelledCrops, device: torch.device, progress: Callable[[int, int], None]
) -> LabelledCrops:
    """Return items with every crop's forensic features, kept beside the crops where these lie in a cache."""
    crops = part.crops
    if part.crop_features is None and isinstance(crops, StoredRows) and all(not s.held for s in crops.shards):
        return replace(part, crop_features=stored_features(crops, device, progress))
    return with_crop_features(part, device, progress)

"""The stream that a benchmark's name, its data and a few options stand for."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from ingest.records import CropPlan
from updater.benchmark.data.cddb import load_cddb, with_unseen_families
from updater.benchmark.data.crops import CropReader
from updater.benchmark.data.families import load_families
from updater.benchmark.data.folders import load_folders
from updater.benchmark.data.tasks import Stream
from updater.benchmark.synthetic.tasks import load_synthetic
from updater.data.layouts.entries import LayoutError
from updater.data.layouts.layouts import LAYOUTS, read_layout

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
        if self.data is None or not self.data.is_dir():
            given = f"{self.data} is none" if self.data else "there is no --data"
            raise LayoutError(f"{self.which} needs the folder of its data, and {given}")
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

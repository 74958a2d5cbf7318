"""The stream that a benchmark's name, its data and a few options stand for."""

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ingest.records import CropPlan
from updater.benchmark.data.cddb import load_cddb, with_unseen_families
from updater.benchmark.data.crops import CropReader
from updater.benchmark.data.folders import load_folders
from updater.benchmark.data.synthetic import load_synthetic
from updater.benchmark.data.tasks import LayoutError, Stream

Which = Literal["cddb", "opencil", "synthetic"]

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

    @property
    def plan(self) -> CropPlan:
        """How media is cut: the own stream's as a release cuts it; others' few shots with overlap."""
        return CropPlan() if self.which == "synthetic" else CropPlan(stride_px=_FEW_SHOTS_STRIDE_PX)

    def read(self, reader: CropReader) -> Stream:
        """Read it. OpenCIL also takes CDDB's layout: the families not yet learnt are its outliers.

        Raises LayoutError, also where no folder is given, and what a layout's own reader raises.
        """
        if self.which == "synthetic":
            return load_synthetic(reader)
        if self.data is None or not self.data.is_dir():
            given = f"{self.data} is none" if self.data else "there is no --data"
            raise LayoutError(f"{self.which} needs the folder of its data, and {given}")
        if self.which == "cddb":
            return load_cddb(self.data, self.sequence, reader)
        if (self.data / "id").is_dir() or (self.data / "ood").is_dir():
            return load_folders(self.data, reader, base=self.base, increment=self.increment)
        if not any(path.is_dir() for path in self.data.glob("*/train")):
            raise LayoutError(
                f"{self.data} holds neither id/CLASS and ood/NAME (OpenCIL) nor"
                " TASK/{train,val}/[CLASS/]{0_real,1_fake} (CDDB): lay it out as one of them"
            )
        return with_unseen_families(load_cddb(self.data, self.sequence, reader), self.data, reader)

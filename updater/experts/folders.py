"""Labelled folders that an expert is trained on, DIR/FAMILY/{0_real,1_fake}/FILE, and what is held back."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ingest.records import CropPlan, MediaPlan
from ingest.sandbox.decode import DecodeError, image_frames
from ingest.sandbox.extract import extract
from ingest.settings import IngestSettings
from updater.data.layouts.listed import subfolders
from updater.experts.check import ExpertError

KINDS = {"0_real": False, "1_fake": True}
_LAYOUT = "FAMILY/0_real/FILE and FAMILY/1_fake/FILE, as CDDB has them"
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
    found = []
    for place in subfolders(folder):
        files: tuple[list[Path], list[Path]] = ([], [])
        for path in sorted(place.rglob("*")):
            kinds = [KINDS[part] for part in path.relative_to(place).parts[:-1] if part in KINDS]
            if kinds and path.is_file() and not path.name.startswith("."):
                files[kinds[0]].append(path)
        if min(map(len, files)) >= _LEAST:
            found.append(Family(place.name, (tuple(files[0]), tuple(files[1]))))
    if not found:
        raise ExpertError(f"{folder} holds no {_LAYOUT}, {_LEAST} of each at least")
    if len(found) == 1:
        raise ExpertError(
            f"{folder} has the family {found[0].name} alone, and a whole family is held back to stop by: add"
            " another source with its generator"
        )
    return found


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

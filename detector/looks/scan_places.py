"""Which crop of which frame of a video is scanned: on the largest face, or where it changes most. Pure."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from detector.looks.following import Corner, corners_along, most_restless
from detector.records import RegionPrediction
from ingest.records import CropPlan, Decoded, Place, PlacesPlan, Region
from ingest.sandbox.crops import Box, grid
from ingest.sandbox.decode import sample

_MOST_PIXELS = 600_000_000
"""of all frames that are scanned together, unless they are as few as the first look's"""
_FEWEST = 8


def places_along(
    regions: Iterable[Region | RegionPrediction],
    size: tuple[int, int],
    length: int,
    elsewhere: Corner,
    crop_px: int,
    most_frames: int,
) -> PlacesPlan:
    """Return one crop of each frame that is scanned: on the largest face, or where the clip says.

    regions: of the first look; size: a frame's width and height, px; length: all frames of the video;
    elsewhere: where to look where no face was found.
    """
    most = min(most_frames, max(_FEWEST, _MOST_PIXELS // (size[0] * size[1])))
    numbers = sample(length, most)
    corners = corners_along(_faces(regions), numbers, size, crop_px, elsewhere)
    places = (Place(number, *corner) for number, corner in zip(numbers, corners, strict=True))
    return PlacesPlan(crop_px=crop_px, places=tuple(places))


def most_restless_corner(item: Decoded, features: NDArray[np.float32], plan: CropPlan) -> Corner:
    """Return the corner of the crop that changes most from frame to frame; the middle where none can be told.

    features: float32 (L * P, F) of P crops in each of L frames of a video without a face.
    """
    corners = grid(item.width, item.height, plan.crop_px, plan.patches, plan.stride_px)
    frames, rest = divmod(len(features), len(corners))
    if frames != item.frames or rest or not features.shape[1]:
        return max(0, (item.width - plan.crop_px) // 2), max(0, (item.height - plan.crop_px) // 2)
    return corners[most_restless(features.reshape(frames, len(corners), -1))]


def _faces(regions: Iterable[Region | RegionPrediction]) -> dict[int, Box]:
    """Return the largest face of each frame in which the first look found one."""
    faces: dict[int, Box] = {}
    for region in sorted((one for one in regions if one.kind == "face"), key=lambda one: _area(one.box)):
        faces[region.frame] = region.box
    return faces


def _area(box: Box) -> int:
    return box[2] * box[3]

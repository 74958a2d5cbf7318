"""A second look at media: crops at places that the first look has led to. In a sandboxed child."""

from collections import defaultdict
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ingest.records import Decoded, Place, PlacesPlan, Region
from ingest.sandbox.crops import Box, cut
from ingest.sandbox.decode import DecodeError, Frame, image_frames
from ingest.sandbox.video import demuxer, video_frames


def cut_places(data: bytes, plan: PlacesPlan, max_pixels: int) -> Decoded:
    """Decode the frames that the plan names and cut its crops, in the order of their frames and places.

    A frame that cannot be reached is left out, or another near it stands for it: the regions say which
    were cut, and where. Raises DecodeError.
    """
    is_video = demuxer(data) is not None
    decode = video_frames if is_video else image_frames
    places: dict[int, list[Place]] = defaultdict(list)
    for place in plan.places:
        places[place.frame].append(place)
    crops: list[NDArray[np.uint8]] = []
    regions: list[Region] = []
    numbers: list[int] = []
    first: Frame | None = None
    for frame in decode(data, plan.frames, max_pixels):
        first = first or frame
        numbers.append(frame.index)
        nearest = min(places, key=partial(_apart, frame.index))
        boxes = [_box(frame, place, plan.crop_px) for place in places.pop(nearest)]
        corners = tuple((left, top) for left, top, _, _ in boxes)
        regions += [
            Region("frame", box, frame.index, frame.time_s, (len(regions) + row,))
            for row, box in enumerate(boxes)
        ]
        crops.append(cut(frame.pixels, corners, plan.crop_px))
    if first is None:
        raise DecodeError("corrupt", "no picture can be decoded")
    height, width, _ = first.pixels.shape
    return Decoded(
        kind="video" if is_video else "image",
        format=first.format,
        width=width,
        height=height,
        frames=len(numbers),
        crops=np.concatenate(crops),
        regions=tuple(regions),
        frame_numbers=tuple(numbers),
        length=first.length,
    )


def _apart(one: int, other: int) -> int:
    return abs(one - other)


def _box(frame: Frame, place: Place, crop_px: int) -> Box:
    """Return what a crop shows of the frame (left, top, width, height), moved inside where it lies beyond."""
    height, width, _ = frame.pixels.shape
    left = min(max(place.left, 0), max(width - crop_px, 0))
    top = min(max(place.top, 0), max(height - crop_px, 0))
    return left, top, min(crop_px, width - left), min(crop_px, height - top)

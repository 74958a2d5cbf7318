"""From bytes to crops and to whole pictures at one size: the path of every kind of media. Pure."""

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import dlib
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from ingest.picture_hash import picture_hashes
from ingest.records import CropPlan, Decoded, Interpolation, PicturePlan, Place, PlacesPlan, Plan, Region
from ingest.sandbox.containers import demuxer
from ingest.sandbox.crops import Box, cut, enlarge, face_grid, grid
from ingest.sandbox.decode import DecodeError, Frame, Gaps, Indices, image_frames
from ingest.sandbox.video import video_frames


def extract(data: bytes, plan: Plan, max_pixels: int) -> Decoded:
    """Decode media and make the plan's views of it.

    The crops of a frame follow one another: first the whole picture's patches, then each face's. A
    still image has regions for its faces only; a video or an animation also one for each frame.

    The crops of a PlacesPlan are in the order of their frames and places. A frame that cannot be reached is
    left out, or another near it stands for it: the regions say which were cut, and where.

    Raises DecodeError.
    """
    if not data:
        raise DecodeError("empty", "no bytes")
    is_video = demuxer(data) is not None
    decode = video_frames if is_video else image_frames
    most_decoded: int | None = None
    if isinstance(plan, PlacesPlan):
        wanted: Indices = plan.frames
        most_decoded = plan.most_decoded
        cuts_of = partial(_cut_places, _by_frame(plan.places), plan.crop_px)
        shows: Mapping[str, PicturePlan] = {}
    else:
        wanted, cuts_of, shows = (
            plan.frames or plan.crops.frames,
            partial(_cut_frame, plan.crops),
            plan.pictures,
        )
    crops: list[NDArray[np.uint8]] = []
    regions: list[Region] = []
    pictures: dict[str, list[NDArray[np.uint8]]] = {name: [] for name in shows}
    is_first_look = not isinstance(plan, PlacesPlan) and plan.frames is None
    hashes: list[bytes] = []
    numbers: list[int] = []
    first: Frame | None = None
    gaps = Gaps()
    decoded, decoding_s = 0, -time.process_time()
    for frame in decode(data, wanted, max_pixels, most_decoded, gaps):
        decoding_s += time.process_time()
        decoded += frame.decoded
        first = first or frame
        numbers.append(frame.index)
        if is_first_look:
            hashes.append(picture_hashes(frame.pixels))
        for name, show in shows.items():
            pictures[name].append(resize(frame.pixels, show))
        for region, cuts in cuts_of(frame, sum(map(len, crops))):
            crops.append(cuts)
            if region.kind == "face" or frame.time_s is not None or isinstance(plan, PlacesPlan):
                regions.append(region)
        decoding_s -= time.process_time()
    decoding_s += time.process_time()
    if first is None:
        raise DecodeError("corrupt", "no picture can be decoded")
    height, width, _ = first.pixels.shape
    return Decoded(
        kind="video" if is_video or first.length > 1 else "image",
        format=first.format,
        width=width,
        height=height,
        frames=len(numbers),
        crops=np.concatenate(crops),
        regions=tuple(regions),
        frame_numbers=tuple(numbers),
        length=first.length,
        others=gaps.others,
        incomplete=gaps.incomplete,
        pictures={name: np.stack(rows) for name, rows in pictures.items()},
        picture_hashes=b"".join(hashes),
        frame_s=max(0.0, decoding_s) / decoded,
    )


def _cut_frame(plan: CropPlan, frame: Frame, row: int) -> Iterator[tuple[Region, NDArray[np.uint8]]]:
    height, width, _ = frame.pixels.shape
    layouts = [
        ("frame", (0, 0, width, height), grid(width, height, plan.crop_px, plan.patches, plan.stride_px))
    ]
    if plan.face_patches and plan.faces:
        for face in find_faces(frame.pixels, plan.faces):
            box = enlarge(face, width, height)
            layouts.append(("face", box, face_grid(box, width, height, plan.crop_px, plan.face_patches)))
    for kind, box, corners in layouts:
        cuts = cut(frame.pixels, corners, plan.crop_px)
        rows = tuple(range(row, row + len(cuts)))
        row += len(cuts)
        yield Region("face" if kind == "face" else "frame", box, frame.index, frame.time_s, rows), cuts


_RESAMPLING: dict[Interpolation, Image.Resampling] = {
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "lanczos": Image.Resampling.LANCZOS,
}


def resize(picture: NDArray[np.uint8], plan: PicturePlan) -> NDArray[np.uint8]:
    """Show uint8 RGB (height, width, 3) as (height_px, width_px, 3). What is made smaller is averaged."""
    size = (plan.width_px, plan.height_px)
    return np.asarray(Image.fromarray(picture).resize(size, _RESAMPLING[plan.interpolation]))


def _by_frame(places: Iterable[Place]) -> dict[int, list[Place]]:
    of_frame: dict[int, list[Place]] = defaultdict(list)
    for place in places:
        of_frame[place.frame].append(place)
    return of_frame


def _cut_places(
    waiting: dict[int, list[Place]], crop_px: int, frame: Frame, row: int
) -> Iterator[tuple[Region, NDArray[np.uint8]]]:
    """Cut the crops of the frame that was wanted here, and take that frame out of `waiting`."""
    nearest = min(waiting, key=lambda number: abs(number - frame.index))
    for at, place in enumerate(waiting.pop(nearest), row):
        box = _box(frame, place, crop_px)
        yield Region("frame", box, frame.index, frame.time_s, (at,)), cut(frame.pixels, (box[:2],), crop_px)


def _box(frame: Frame, place: Place, crop_px: int) -> Box:
    """Return what a crop shows of the frame (left, top, width, height), moved inside where it lies beyond."""
    height, width, _ = frame.pixels.shape
    left = min(max(place.left, 0), max(width - crop_px, 0))
    top = min(max(place.top, 0), max(height - crop_px, 0))
    return left, top, min(crop_px, width - left), min(crop_px, height - top)


_PART_PX = 1_000_000

# At 12 MP the detector takes 1.7 s and 636 MB; on a copy of this size, 50 ms.
_COPY_PX = 1024
# The detector's window is 80 px: it misses smaller faces unless the copy is doubled, which costs four
# times a pass. That can only win where faces are small: in pictures that were scaled down, or tiny.
_TINY_PX = 200

_own = threading.local()


def find_faces(picture: NDArray[np.uint8], most: int) -> tuple[Box, ...]:
    """Find the largest frontal faces of a picture: dlib's histogram of gradients, on a copy of bounded size.

    picture is uint8 RGB (height, width, 3). Returns at most `most` boxes (left, top, width, height)
    in px of the picture, cut to it, the largest first.
    """
    height, width, _ = picture.shape
    longest = max(height, width)
    copy, scale = picture, 1.0
    if longest > _COPY_PX:
        scale = longest / _COPY_PX
        size = (max(1, round(width / scale)), max(1, round(height / scale)))
        copy = np.asarray(_smaller(picture, size))
    detections = _detector()(np.ascontiguousarray(copy), 0)
    if not detections and (scale > 1 or longest <= _TINY_PX):
        detections = _detector()(np.ascontiguousarray(copy), 1)
    boxes = (_native(face, scale, width, height) for face in detections)
    within = [box for box in boxes if box[2] > 0 and box[3] > 0]
    return tuple(sorted(within, key=lambda box: (-box[2] * box[3], box))[:most])


def _smaller(picture: NDArray[np.uint8], size: tuple[int, int]) -> Image.Image:
    """Resize as Pillow does with a reducing gap of 2; some rows at a time, so that no whole copy is held."""
    height, width, _ = picture.shape
    by_x, by_y = (max(1, side // (2 * small)) for side, small in zip((width, height), size, strict=True))
    rows = by_y * max(1, _PART_PX // (by_y * width))
    parts = (picture[top : top + rows] for top in range(0, height, rows))
    reduced = np.concatenate([np.asarray(Image.fromarray(part).reduce((by_x, by_y))) for part in parts])
    box = (0, 0, width / by_x, height / by_y)
    return Image.fromarray(reduced).resize(size, Image.Resampling.BILINEAR, box)


def _native(face: Any, scale: float, width: int, height: int) -> Box:
    left, top = max(0, round(face.left() * scale)), max(0, round(face.top() * scale))
    right = min(width, round((face.right() + 1) * scale))
    bottom = min(height, round((face.bottom() + 1) * scale))
    return left, top, right - left, bottom - top


def _detector() -> Any:
    # It keeps what it is at work on, and lets other threads go on meanwhile: each has its own.
    if not hasattr(_own, "detector"):
        _own.detector = dlib.get_frontal_face_detector()
    return _own.detector

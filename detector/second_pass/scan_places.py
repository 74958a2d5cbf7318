"""Which crop of which frame of a video is scanned: on the largest face, or where it changes most. Pure."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from detector.records import RegionPrediction
from detector.release.manifest import Manifest
from detector.verdicts import Corner, VideoClip
from ingest.records import CropPlan, Decoded, Place, PlacesPlan, Region
from ingest.sandbox.crops import Box, face_grid, grid
from ingest.sandbox.decode import sample

# Single crops that are judged beside the items' regions: the item's place, and the crop as a region.
Apart = list[tuple[int, Region]]

# of all frames that are scanned together, unless they are as few as the first look's
_MOST_PIXELS = 600_000_000
# frames; fewer are no scan, unless the video has no more
FEWEST = 8


def frame_crops_of_videos(items: Sequence[Decoded], manifest: Manifest) -> Apart:
    """Return each crop of the frames of the videos without a face, where the release has a scanner."""
    if manifest.scanner is None:
        return []
    return [
        (place, Region("frame", region.box, region.frame, region.time_s, (row,)))
        for place, item in enumerate(items)
        if item.kind == "video" and all(region.kind != "face" for region in item.regions)
        for region in item.regions
        for row in region.crops
    ]


def clips(
    items: Sequence[Decoded], apart: Apart, features: NDArray[np.float32], manifest: Manifest
) -> list[VideoClip | None]:
    """Return what is known of each item that is a video; None for others, and without a scanner.

    features: float32 (M, F), of the request's rows, the last of which are those of apart.
    """
    if manifest.scanner is None:
        return [None] * len(items)
    of_item = np.array([place for place, _ in apart], np.int64)
    single = features[len(features) - len(apart) :]
    plan = manifest.contract.crop_plan
    return [
        VideoClip(item.length, most_restless_corner(item, single[of_item == place], plan), item.frame_s)
        if item.kind == "video"
        else None
        for place, item in enumerate(items)
    ]


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
    most = min(most_frames, max(FEWEST, _MOST_PIXELS // (size[0] * size[1])))
    numbers = sample(length, most)
    faces = sorted((r for r in regions if r.kind == "face"), key=lambda face: face.box[2] * face.box[3])
    largest = {face.frame: face.box for face in faces}
    corners = corners_along(largest, numbers, size, crop_px, elsewhere)
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


def face_followed(faces: Mapping[int, Box], frames: Sequence[int]) -> list[Box]:
    """Return a box for each of these frames, by number: as found, between two found ones their mixture.

    faces: number of a searched frame → the largest face in it, (left, top, width, height) in px; at least
    one. Before the first and after the last the face stays where it is. Raises ValueError without a face.
    """
    if not faces:
        raise ValueError("no face to follow")
    numbers = sorted(faces)
    boxes = np.array([faces[number] for number in numbers], float)
    sides = [np.interp(frames, numbers, column) for column in boxes.T]
    return [(int(a), int(b), int(c), int(d)) for a, b, c, d in np.rint(np.stack(sides, 1))]


def corners_along(
    faces: Mapping[int, Box], frames: Sequence[int], size: tuple[int, int], crop_px: int, elsewhere: Corner
) -> list[Corner]:
    """Return where the one crop of each frame lies: on the face, or at `elsewhere` where none was found.

    frames: their numbers; size: their width and height, px.
    """
    if not faces:
        return [elsewhere] * len(frames)
    return [face_grid(box, *size, crop_px, 1)[0] for box in face_followed(faces, frames)]


def most_restless(by_place: NDArray[np.float32]) -> int:
    """Return the place that changes most over time, by its features in some frames, float32 [L, P, F].

    That is where they deviate most from the median over the frames, in units of all places' deviation.
    """
    deviation = np.abs(by_place - np.median(by_place, 0))
    return int((deviation / (deviation.mean((0, 1)) + 1e-6)).mean((0, 2)).argmax())

"""From bytes to crops: the one path that every kind of media takes, inside a sandboxed child."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ingest.records import CropPlan, Decoded, PlacesPlan, Plan, Region
from ingest.sandbox.crops import cut, enlarge, face_grid, grid
from ingest.sandbox.decode import DecodeError, Frame, image_frames
from ingest.sandbox.faces import find_faces
from ingest.sandbox.pictures import shown
from ingest.sandbox.places import cut_places
from ingest.sandbox.video import demuxer, video_frames


def extract(data: bytes, plan: Plan, max_pixels: int) -> Decoded:
    """Decode media and make the plan's views of it.

    The crops of a frame follow one another: first the whole picture's patches, then each face's. A
    still image has regions for its faces only; a video or an animation also one for each frame.

    Raises DecodeError.
    """
    if not data:
        raise DecodeError("empty", "no bytes")
    if isinstance(plan, PlacesPlan):
        return cut_places(data, plan, max_pixels)
    is_video = demuxer(data) is not None
    decode = video_frames if is_video else image_frames
    crops: list[NDArray[np.uint8]] = []
    regions: list[Region] = []
    numbers: list[int] = []
    pictures: dict[str, list[NDArray[np.uint8]]] = {name: [] for name in plan.pictures}
    first: Frame | None = None
    rows = 0
    for frame in decode(data, plan.frames or plan.crops.frames, max_pixels):
        first = first or frame
        numbers.append(frame.index)
        for name, wanted in plan.pictures.items():
            pictures[name].append(shown(frame.pixels, wanted))
        for region, cuts in _cut_frame(frame, plan.crops, rows):
            rows += len(cuts)
            crops.append(cuts)
            if region.kind == "face" or frame.time_s is not None:
                regions.append(region)
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
        pictures={name: np.stack(rows) for name, rows in pictures.items()},
    )


def _cut_frame(frame: Frame, plan: CropPlan, row: int) -> Iterator[tuple[Region, NDArray[np.uint8]]]:
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

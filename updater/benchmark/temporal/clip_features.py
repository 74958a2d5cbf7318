"""Features of a file's frames, one crop a frame.

The crop follows the largest face. A video without a face is seen where it is most restless: of a
grid of crops, where the forensic features of a few frames deviate most from their median, in units of all
crops' deviation.
"""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from detector.looks.scan_places import corners_along, most_restless
from detector.release.manifest import FEATURE_WIDTH
from detector.verdicts import Corner
from ingest.sandbox.crops import Box, cut, grid
from ingest.sandbox.extract import find_faces
from updater.distortions.clip import Clip, ClipError, to_rgb
from updater.filters import Picture
from updater.scan.clips import SeenFrames

CROP_PX = 128
_SEARCHED_EVERY = 8
_PLACES, _LOOKS = 9, 6


def frame_features(
    path: Path, features: SeenFrames, first: int, end: int | None, max_pixels: int
) -> NDArray[np.float32]:
    """Return the raw features of the frames first … end - 1 of a file, float32 [T, F]; end None: all.

    features: of crops of `CROP_PX`. Raises ClipError where the file cannot be read, or holds none of these.
    """
    clip = Clip(path, max_pixels)
    searched = dict(_searched(clip, first, end))
    if not searched:
        raise ClipError(f"{path} holds no frame from {first} on")
    height, width = next(iter(searched.values())).shape[:2]
    if width <= CROP_PX and height <= CROP_PX:
        faces: dict[int, Box] = {}
        elsewhere: Corner = (0, 0)
    else:
        found = {number: find_faces(picture, 1) for number, picture in searched.items()}
        faces = {number: boxes[0] for number, boxes in found.items() if boxes}
        elsewhere = (0, 0) if faces else _most_restless(list(searched.values()), features)
    frames = sum(1 for _ in islice(clip.frames(), first, end))
    corners = corners_along(faces, range(frames), (width, height), CROP_PX, elsewhere)
    shown = zip(islice(clip.frames(), first, end), corners, strict=True)
    return features(np.concatenate([cut(to_rgb(frame), (corner,), CROP_PX) for frame, corner in shown]))


def _searched(clip: Clip, first: int, end: int | None) -> Iterator[tuple[int, Picture]]:
    for number, frame in enumerate(islice(clip.frames(), first, end)):
        if number % _SEARCHED_EVERY == 0:
            yield number, to_rgb(frame)


def _most_restless(pictures: list[Picture], features: SeenFrames) -> Corner:
    looked = pictures[:: -(-len(pictures) // _LOOKS)]
    height, width = looked[0].shape[:2]
    corners = grid(width, height, CROP_PX, _PLACES)
    found = features(np.concatenate([cut(picture, corners, CROP_PX) for picture in looked]))[
        :, :FEATURE_WIDTH
    ]
    return corners[most_restless(found.reshape(len(looked), len(corners), -1))]

"""One place of a video, followed: the largest face, between the frames that were searched for it. Pure."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ingest.sandbox.crops import Box, face_grid

Corner = tuple[int, int]
"""left and top of a crop, px"""


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

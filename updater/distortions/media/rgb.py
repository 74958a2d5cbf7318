"""Frames as arrays of RGB, and arrays as frames like those that they came from."""

from collections.abc import Iterable, Iterator
from typing import Any

import av
import numpy as np
from av.video.reformatter import ColorRange, Colorspace, Interpolation

from updater.filters import Picture

TAGS = ("colorspace", "color_range", "color_primaries", "color_trc")
"""What a frame says of its colours."""

_BYTES_AT_A_TIME = 16 * 2**20
# Without the last, a turn to RGB and back takes a level from the luma.
_CAREFUL = (
    Interpolation.BICUBIC
    | Interpolation.FULL_CHR_H_INP
    | Interpolation.ACCURATE_RND
    | Interpolation.FULL_CHR_H_INT
)


def to_rgb(frame: Any) -> Picture:
    """Convert a frame to uint8 RGB [H, W, 3] by the colour space and range that it names, else BT.601."""
    return np.asarray(frame.reformat(format="rgb24", interpolation=_CAREFUL, threads=1).to_ndarray())


def to_frame(picture: Picture, like: Any) -> Any:
    """Convert uint8 RGB [H, W, 3] to a frame of another's format, colour space and range."""
    frame = _frame(picture).reformat(
        format=like.format.name,
        interpolation=_CAREFUL,
        dst_colorspace=like.colorspace,
        dst_color_range=like.color_range,
        threads=1,
    )
    for tag in TAGS:
        setattr(frame, tag, getattr(like, tag))
    return frame


def to_plain_frame(picture: Picture, pixel_format: str = "yuv420p") -> Any:
    """Convert uint8 RGB [H, W, 3] by BT.601 to studio range, of which the frame says nothing."""
    return _frame(picture).reformat(
        format=pixel_format,
        interpolation=_CAREFUL,
        dst_colorspace=Colorspace.ITU601,
        dst_color_range=ColorRange.MPEG,
        threads=1,
    )


def pieces(frames: Iterable[Any]) -> Iterator[list[Any]]:
    """Part a clip into runs of frames of which RGB takes little memory."""
    run: list[Any] = []
    for frame in frames:
        run.append(frame)
        if len(run) * frame.width * frame.height * 3 >= _BYTES_AT_A_TIME:
            yield run
            run = []
    if run:
        yield run


def _frame(picture: Picture) -> Any:
    return av.VideoFrame.from_ndarray(np.ascontiguousarray(picture), "rgb24")

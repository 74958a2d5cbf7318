"""Frames through H.264 in memory: what is left of a clip that was coded once."""

import io
from typing import Any

import av
import numpy as np

from updater.distortions.media.rgb import to_plain_frame, to_rgb
from updater.distortions.media.writing import h264
from updater.filters import Picture

RATE = 25  # frames a second; the rate factor means the same whatever it is


def to_h264(frames: Picture, rate_factor: int, container: str = "matroska") -> bytes:
    """Code uint8 RGB [T, H, W, 3] by libx264 (medium), 25 frames a second, into one of FFmpeg's containers.

    Odd sides keep their chroma whole.
    """
    coder = h264(rate_factor)
    height, width = frames.shape[1:3]
    pixel_format = "yuv444p" if height % 2 or width % 2 else "yuv420p"
    buffer = io.BytesIO()
    with av.open(buffer, "w", format=container, options={"fflags": "+bitexact"}) as out:
        stream: Any = out.add_stream(coder.name, rate=RATE, options=dict(coder.options))
        stream.width, stream.height, stream.pix_fmt = width, height, pixel_format
        stream.codec_context.thread_count = 1
        for picture in frames:
            out.mux(stream.encode(to_plain_frame(picture, pixel_format)))
        out.mux(stream.encode(None))
    return buffer.getvalue()


def through_h264(frames: Picture, rate_factor: int) -> Picture:
    """Code uint8 RGB [T, H, W, 3] as `to_h264` does and decode it."""
    with av.open(io.BytesIO(to_h264(frames, rate_factor)), "r", format="matroska") as container:
        return np.stack([to_rgb(frame) for frame in container.decode(video=0)])

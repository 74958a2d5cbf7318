"""Small clips, written here."""

from fractions import Fraction

import av
import numpy as np
import pytest


def _scene(frames, height, width):
    """Smooth colours that drift, uint8 RGB [T, H, W, 3]."""
    down, across = np.arange(height)[:, None] / height, np.arange(width)[None] / width
    waves = [
        np.stack([128 + 90 * np.sin(6 * (down + n * across) + t / 5 + n) for n in (1, 2, 3)], -1)
        for t in range(frames)
    ]
    return np.stack(waves).astype(np.uint8)


@pytest.fixture
def scene():
    return _scene


@pytest.fixture
def write(tmp_path):
    """Writes a clip of smooth colours, with a second of sound for each second if asked for."""

    def write(
        name,
        frames=10,
        size=(64, 96),
        *,
        codec="libx264",
        rate=25,
        sound=False,
        times=None,
        pixel_format="yuv420p",
        **tags,
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with av.open(str(path), "w") as out:
            stream = out.add_stream(codec, rate=rate)
            stream.height, stream.width, stream.pix_fmt = *size, pixel_format
            stream.codec_context.time_base = Fraction(1, rate)
            for tag, value in tags.items():
                setattr(stream.codec_context, tag, value)
            heard = out.add_stream("aac", rate=16000, layout="mono") if sound else None
            for number, picture in enumerate(_scene(frames, *size)):
                frame = av.VideoFrame.from_ndarray(picture, "rgb24").reformat(
                    format=pixel_format,
                    dst_colorspace=tags.get("colorspace"),
                    dst_color_range=tags.get("color_range"),
                )
                frame.pts, frame.time_base = (times or range(frames))[number], Fraction(1, rate)
                out.mux(stream.encode(frame))
            out.mux(stream.encode(None))
            if heard:
                tone = np.sin(np.arange(16000 * frames // rate) / 20).astype(np.float32)
                for start in range(0, len(tone), 1024):
                    piece = av.AudioFrame.from_ndarray(tone[None, start : start + 1024], "fltp", "mono")
                    piece.sample_rate, piece.pts = 16000, start
                    out.mux(heard.encode(piece))
                out.mux(heard.encode(None))
        return path

    return write

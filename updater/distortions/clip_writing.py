"""A video file written from frames, with another's sound beside them; and frames through H.264 in memory."""

import io
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import av.codec
import numpy as np

from updater.distortions.clip import BROKEN, TAGS, Clip, ClipError, to_plain_frame, to_rgb
from updater.filters import Picture

# SVT-AV1 prints what it does, unless told to print errors alone.
os.environ.setdefault("SVT_LOG", "1")

CONTAINERS = {".mp4": "mp4", ".m4v": "mp4", ".mov": "mov", ".mkv": "matroska", ".webm": "webm", ".avi": "avi"}
"""FFmpeg's containers by how a file's name ends."""


@dataclass(frozen=True)
class Coder:
    """An encoder, by FFmpeg's name and options. One thread, for the bytes depend on their number."""

    name: str
    options: tuple[tuple[str, str], ...] = ()
    bits_a_pixel: int | None = None
    """a bit rate, where it is not a quality that is asked for"""
    key_interval: int | None = None

    def pixel_format(self, frame: Any) -> str:
        """Choose the frame's own format where the encoder takes it, else one of 8 bits."""
        odd = frame.width % 2 or frame.height % 2
        known = {form.name for form in av.codec.Codec(self.name, "w").video_formats or ()}
        if frame.format.name in known and not (odd and "420" in frame.format.name):
            return str(frame.format.name)
        return "yuv444p" if odd and "yuv444p" in known else "yuv420p"


def _has_avx512() -> bool:
    usable = np.show_config(mode="dicts")["SIMD Extensions"]["found"]
    return any(name == "X86_V4" or name.startswith("AVX512") for name in usable)


# By its AVX-512 code libx264 now and then codes equal frames unequally (53 of 240 clips, and none without its
# macroblock tree); by that for AVX2 none of 360.
_REPEATABLE = (("x264-params", "asm=avx2"),) if _has_avx512() else ()


def h264(rate_factor: int) -> Coder:
    """Make libx264 of the preset medium at a constant rate factor: equal frames become equal bytes."""
    return Coder("libx264", (("crf", str(rate_factor)), ("preset", "medium"), *_REPEATABLE))


RATE = 25  # frames a second; the rate factor means the same whatever it is
USUAL_RATE_FACTOR = 23
STORED_AS = {
    "h264": h264(USUAL_RATE_FACTOR),
    "hevc": Coder("libx265", (("crf", "28"), ("x265-params", "log-level=none:pools=none:frame-threads=1"))),
    "mpeg4": Coder("mpeg4", (("qmin", "3"),), bits_a_pixel=2, key_interval=12),
    "vp8": Coder("libvpx", (("crf", "10"),), bits_a_pixel=1),
    "vp9": Coder("libvpx-vp9", (("crf", "31"),), bits_a_pixel=0),
    "av1": Coder("libsvtav1", (("crf", "35"), ("svtav1-params", "lp=1"))),
}
"""How a clip is stored again, by the codec that it came in; what came in another becomes H.264."""


def write_clip(
    target: Path, container: str, frames: Iterable[Any], like: Clip, coder: Coder, *, sound: bool
) -> None:
    """Code frames (av.VideoFrame of one size) at the rate of `like`, whose sound is copied if asked for.

    Frames of a format that the encoder takes are coded as they are. Raises ClipError where the codec or the
    container takes no such frames or no such sound.
    """
    with like.sound() as (given, heard):
        try:
            with (
                target.open("wb") as file,
                av.open(file, "w", format=container, options={"fflags": "+bitexact"}) as out,
            ):
                streams = {stream: out.add_stream_from_template(stream) for stream in given} if sound else {}
                _write(out, frames, like, coder, _move(heard, streams, like.start_s) if streams else iter(()))
        except BROKEN as error:
            form = f"{container} of {coder.name}"
            raise ClipError(f"{like.called} cannot be written as {form}: {error}") from error


def _write(out: Any, frames: Iterable[Any], like: Clip, coder: Coder, sound: Iterator[Any]) -> None:
    picture, unit = None, Fraction(0)
    waiting = next(sound, None)
    for number, frame in enumerate(frames):
        if picture is None:
            picture = _picture_stream(out, coder, frame, like)
            unit = 1 / picture.codec_context.framerate
        if frame.format.name != picture.codec_context.pix_fmt:
            frame = frame.reformat(format=picture.codec_context.pix_fmt)
        # What kind of frame it was is the old encoder's choice.
        frame.pict_type = 0
        frame.pts, frame.time_base = number, unit
        while waiting and waiting.dts * waiting.time_base <= number * unit:
            out.mux(waiting)
            waiting = next(sound, None)
        out.mux(picture.encode(frame))
    if picture is not None:
        out.mux(picture.encode(None))
    while waiting:
        out.mux(waiting)
        waiting = next(sound, None)


def _picture_stream(out: Any, coder: Coder, first: Any, like: Clip) -> Any:
    # MPEG-4 part 2 counts time in at most 65,535 parts of a second.
    rate = 1 / (1 / like.rate).limit_denominator(65_535) if coder.name == "mpeg4" else like.rate
    stream = out.add_stream(coder.name, rate=Fraction(rate), options=dict(coder.options))
    context = stream.codec_context
    stream.width, stream.height = first.width, first.height
    stream.pix_fmt = coder.pixel_format(first)
    context.thread_count = 1
    context.framerate = rate
    if like.sample_aspect_ratio:
        context.sample_aspect_ratio = like.sample_aspect_ratio
    for tag in TAGS:
        setattr(context, tag, getattr(first, tag))
    if coder.bits_a_pixel is not None:
        context.bit_rate = round(coder.bits_a_pixel * first.width * first.height * rate)
    if coder.key_interval is not None:
        context.gop_size = coder.key_interval
    return stream


def _move(packets: Iterable[Any], streams: dict[Any, Any], start_s: float) -> Iterator[Any]:
    """Packets of sound on their new streams, as long after the first frame as they were."""
    for packet in packets:
        late = round(start_s / packet.time_base)
        packet.dts -= late
        if packet.pts is not None:
            packet.pts -= late
        packet.stream = streams[packet.stream]
        yield packet


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

"""A video file to be read: its frames as they are coded (YUV), upright, or as RGB; its sound as packets.

FFmpeg gets an open file and the name of one demuxer, never a path or a URL.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import av
import av.error
import av.filter
import numpy as np
from av.video.reformatter import ColorRange, Colorspace, Interpolation

from ingest.sandbox.containers import demuxer
from ingest.sandbox.video import open_film
from updater.filters import Picture

BROKEN = (av.error.FFmpegError, ValueError, OverflowError, RuntimeError, LookupError)
"""What PyAV raises on damaged media, and where a codec or a container does not take what it is given."""

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
_HEAD_BYTES = 4096
# How much an interval between two frames may differ from the others, beside the tick that a coarse time base
# rounds away.
_UNEVEN = 0.02
_USUAL_RATE = Fraction(25)
# Filters by the degrees, counter-clockwise, that a frame is to be turned by.
_HALF = (("hflip", None), ("vflip", None))
_TURNS = {90: (("transpose", "cclock"),), 180: _HALF, 270: (("transpose", "clock"),)}


class ClipError(Exception):
    """A video that cannot be read or written; its text is one line."""


def _said_of(error: Exception) -> str:
    """The error's text, without FFmpeg's number."""
    return str(getattr(error, "strerror", None) or error)


class Clip:
    """One video of a constant frame rate. Raises ClipError where the file is none.

    What is wrong is told of `called`, where the file is a passing stage of another's.
    """

    def __init__(self, path: Path, max_pixels: int, called: Path | None = None) -> None:
        self._path, self._max_pixels = path, max_pixels
        self.called = called or path
        with path.open("rb") as file:
            self._demuxer = demuxer(file.read(_HEAD_BYTES))
        if self._demuxer is None:
            raise ClipError(f"{self.called} is no video of MP4, MOV, Matroska, WebM, AVI")
        with self._open() as container:
            stream = self._pictures(container)
            self.codec = str(stream.codec_context.codec.canonical_name)
            """h264, hevc, mpeg4, …"""
            self.sample_aspect_ratio: Fraction | None = stream.sample_aspect_ratio
            unit, stated = stream.time_base, stream.average_rate
            times = _times(container, stream)
        if not times:
            raise ClipError(f"{self.called} holds no frames")
        self.start_s = float(times[0] * unit)
        self.rate = self._rate(times, unit, stated)
        """frames a second"""

    def frames(self) -> Iterator[Any]:
        """Decode all frames (av.VideoFrame), turned as the metadata says.

        Raises ClipError where one cannot be decoded, or has another size than the first.
        """
        with self._open() as container:
            size, turn = None, None
            for number, frame in enumerate(container.decode(self._pictures(container))):
                size = size or (frame.width, frame.height)
                if (frame.width, frame.height) != size:
                    raise ClipError(
                        f"{self.called} changes its size from {size[0]} x {size[1]} to"
                        f" {frame.width} x {frame.height} px at frame {number}: cut it there"
                    )
                turn = turn or _turning(frame)
                yield turn(frame)
            if size is None:
                raise ClipError(f"{self.called} holds no frames")

    @contextmanager
    def sound(self) -> Iterator[tuple[Sequence[Any], Iterator[Any]]]:
        """Open the sound: its streams, and its packets as they are stored, in their order."""
        with self._open() as container:
            streams = [stream for stream in container.streams.audio if stream.codec_context is not None]
            yield streams, self._packets(container, streams)

    def _packets(self, container: Any, streams: Sequence[Any]) -> Iterator[Any]:
        try:
            for packet in container.demux(streams) if streams else ():
                if packet.dts is not None:
                    yield packet
        except BROKEN as error:
            raise ClipError(f"{self.called} cannot be read: {_said_of(error)}") from error

    @contextmanager
    def _open(self) -> Iterator[Any]:
        assert self._demuxer is not None
        try:
            with self._path.open("rb") as file, open_film(file, self._demuxer) as container:
                yield container
        except BROKEN as error:
            raise ClipError(f"{self.called} cannot be read: {_said_of(error)}") from error

    def _pictures(self, container: Any) -> Any:
        streams = container.streams.video
        if not streams or streams[0].codec_context is None:
            raise ClipError(f"{self.called} holds no pictures that can be decoded")
        context = streams[0].codec_context
        if context.width * context.height > self._max_pixels:
            size = f"{context.width} x {context.height} px"
            raise ClipError(f"{self.called}: {size}; the limit is {self._max_pixels} in all")
        # The size may still change in mid-stream; then FFmpeg itself holds the limit.
        context.options = {"max_pixels": str(self._max_pixels)}
        return streams[0]

    def _rate(self, times: list[int], unit: Fraction, stated: Fraction | None) -> Fraction:
        if len(times) == 1:
            return stated or _USUAL_RATE
        steps = [later - earlier for earlier, later in pairwise(times)]
        usual = median(steps)
        odd = max(steps, key=lambda step: abs(step - usual))
        if abs(odd - usual) > 1 + _UNEVEN * usual:
            apart = f"{float(odd * unit):.3f} s apart, and others {float(usual * unit):.3f} s"
            raise ClipError(f"{self.called} has frames {apart}: bring it to a constant rate")
        seen = Fraction(len(times) - 1) / (unit * (times[-1] - times[0]))
        # A time base of whole milliseconds shows 29.97 a second as something else.
        return stated if stated and abs(stated / seen - 1) < _UNEVEN else seen.limit_denominator(1001)


def _times(container: Any, stream: Any) -> list[int]:
    """When the frames are shown, in order, in the stream's unit; nothing is decoded for it."""
    times = []
    for packet in container.demux(stream):
        when = packet.dts if packet.pts is None else packet.pts
        if packet.size and when is not None and not packet.is_discard:
            times.append(when)
    return sorted(times)


def _turning(first: Any) -> Callable[[Any], Any]:
    """How the frames of a clip are turned upright, by what its first one says."""
    filters = _TURNS.get(first.rotation % 360)
    if filters is None:
        return lambda frame: frame
    graph = av.filter.Graph()
    source = graph.add_buffer(
        width=first.width, height=first.height, format=first.format, time_base=first.time_base
    )
    graph.link_nodes(source, *(graph.add(*node) for node in filters), graph.add("buffersink")).configure()

    def turn(frame: Any) -> Any:
        graph.push(frame)
        return graph.pull()

    return turn


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

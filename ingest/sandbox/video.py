"""Decodes frames of videos with FFmpeg (PyAV), from bytes only. To be called in a sandboxed child.

FFmpeg never gets a path or a URL, never guesses a format (its list holds playlists that open other
files), and one thread; the demuxer is chosen here, from the first bytes.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from io import BytesIO
from typing import Any, BinaryIO, NamedTuple

import av
import av.error
import av.logging
import numpy as np
from av.stream import Disposition
from numpy.typing import NDArray

from ingest.sandbox.containers import demuxer, ends_early, looks_like
from ingest.sandbox.decode import RGB_BYTES, DecodeError, Frame, Gaps, Indices, check_bytes, choose, sample

# What may be decoded to reach the wanted frames, pixels: about 2 s of one core, unless it is said how many
# frames may be. A clip within it is decoded from its start; a longer one only from the key frame before
# each wanted frame; where even that is too much, the key frames themselves stand for the wanted ones, or
# frames behind them, as far as may be decoded.
_MOST_DECODED_PIXELS = 600_000_000
# Names in a film need not be UTF-8, which PyAV takes by itself from 19 on (Python 3.12 and later).
_NAMES: dict[str, Any] = {"metadata_errors": "replace"} if int(av.__version__.partition(".")[0]) < 19 else {}

av.logging.set_level(None)


class _Target(NamedTuple):
    """A frame to reach: its number, its time, and the time of the key frame to enter by (stream units)."""

    number: int
    time: int
    key: int


def video_frames(
    data: bytes, frames: Indices, max_pixels: int, most_decoded: int | None = None, gaps: Gaps | None = None
) -> Iterator[Frame]:
    """Decode frames of a video, turned as its metadata says.

    most_decoded: of all frames, how many may be decoded; None: as many as have so many pixels together.
    gaps is told what is not looked at.

    Deterministic: frames are chosen among those that the container really holds, not by its stated
    length. Raises DecodeError: unknown_format (also: no picture stream), too_many_pixels,
    out_of_memory, corrupt.
    """
    name = demuxer(data)
    if name is None:
        raise DecodeError("unknown_format", looks_like(data))
    gaps = gaps or Gaps()
    try:
        gaps.incomplete = ends_early(data)
        yield from _frames(data, name, frames, max_pixels, most_decoded, gaps)
    except MemoryError as error:
        raise DecodeError("out_of_memory", "the video does not fit the memory limit") from error
    except (av.error.FFmpegError, ValueError, OverflowError, RuntimeError, LookupError) as error:
        cut = "the file is cut, or was still being written: " if gaps.incomplete else ""
        reason = error.strerror if isinstance(error, av.error.FFmpegError) else error
        raise DecodeError("corrupt", f"{cut}the film cannot be read: {reason}") from error


def _frames(
    data: bytes, name: str, frames: Indices, max_pixels: int, most_decoded: int | None, gaps: Gaps
) -> Iterator[Frame]:
    label = _label(data, name)
    times, keys = _packets(data, name, gaps)
    if not times:
        raise DecodeError("corrupt", "the film holds no frame")
    wanted = choose(len(times), frames)
    count = 0
    with open_film(BytesIO(data), name) as container:
        stream = _picture_stream(container, gaps)
        pixels = _limit(stream, max_pixels)
        most = most_decoded or _MOST_DECODED_PIXELS // max(pixels, 1)
        if len(times) <= most:
            source = _in_order(container, stream, wanted)
        else:
            targets = _targets(times, keys, wanted, most, onwards=most_decoded is not None)
            source = _by_key_frames(container, stream, targets)
        try:
            for index, picture, decoded in source:
                count += 1
                when = picture.pts if picture.pts is not None else times[index]
                time_s = float((when - (stream.start_time or 0)) * stream.time_base)
                check_bytes(picture.width, picture.height, _pixel_bytes(picture.format), max_pixels)
                yield Frame(label, index, time_s, _upright(picture), len(times), decoded)
        except av.error.FFmpegError:
            if not count:  # a damaged end takes nothing from the frames before it
                raise
            gaps.incomplete = True
    if not count:
        raise DecodeError("corrupt", "no frame of the film can be decoded")


def open_film(file: BinaryIO, name: str) -> Any:
    """Open a film with the demuxer of that name, which reads nothing but the file. Raises what PyAV does."""
    options = {"protocol_whitelist": "none"} | ({"enable_drefs": "0"} if name == "mov" else {})
    return av.open(file, format=name, options=options, **_NAMES)


def _picture_stream(container: Any, gaps: Gaps) -> Any:
    """Choose the track that players show: the first that is enabled, or default; a cover is none."""
    tracks = container.streams.video
    streams = [track for track in tracks if not track.disposition & Disposition.attached_pic]
    if not streams:
        raise DecodeError("unknown_format", "the film has no picture track: sound is not judged")
    gaps.others = len(streams) - 1
    return next((stream for stream in streams if stream.disposition & Disposition.default), streams[0])


def _limit(stream: Any, max_pixels: int) -> int:
    """Hold the decoder to the limits; return the pixels of one frame."""
    if stream.codec_context is None:
        raise DecodeError("unknown_format", "the film's codec is not known: send H.264 or HEVC")
    width, height = stream.codec_context.width, stream.codec_context.height
    check_bytes(width, height, _pixel_bytes(stream.codec_context.format), max_pixels)
    # The size may still change in mid-stream; then FFmpeg itself holds the limit.
    stream.codec_context.options = {"max_pixels": str(max_pixels)}
    stream.codec_context.thread_count = 1
    return int(width * height)


def _pixel_bytes(pixel_format: Any) -> float:
    """Bytes of a pixel of FFmpeg's format, as it is padded in memory; it is not always known in advance."""
    return max(RGB_BYTES, pixel_format.padded_bits_per_pixel / 8) if pixel_format else RGB_BYTES


def _packets(data: bytes, name: str, gaps: Gaps) -> tuple[list[int], list[int]]:
    """Read all picture packets' times and those of the key frames; decodes nothing.

    Both sorted, in units of the stream's time base.
    """
    times, keys = [], []
    with open_film(BytesIO(data), name) as container:
        try:
            stream, count = _picture_stream(container, gaps), 0
            for packet in container.demux(stream):
                count += packet.size > 0
                when = packet.pts if packet.pts is not None else packet.dts
                if packet.size and when is not None and not packet.is_discard:
                    times.append(when)
                    if packet.is_keyframe:
                        keys.append(when)
            gaps.incomplete |= name == "mov" and count < stream.frames
        except av.error.FFmpegError:
            gaps.incomplete = True  # a damaged end: the packets before it are good
    return sorted(times), sorted(keys)


def _targets(
    times: list[int], keys: list[int], chosen: tuple[int, ...], most: int, *, onwards: bool
) -> list[_Target]:
    """Plan the way to the chosen frames through key frames, within the frames that may be decoded.

    Where that is too much: to the key frames before them; onwards: and from there as far as it goes.
    """
    ways, cost, reached = [], 0, -1
    for index in chosen:
        before = bisect_right(keys, times[index])
        key = bisect_left(times, keys[before - 1]) if before else 0
        cost += index - max(key, reached)
        reached = index
        ways.append((index, key))
    if cost > most:
        entered = sorted({key for _, key in ways})
        entered = [entered[place] for place in sample(len(entered), most)]
        steps = most // len(entered) - 1 if onwards else 0
        ways = sorted({(min(index, key + steps), key) for index, key in ways if key in entered})
    return [_Target(index, times[index], times[key]) for index, key in ways]


def _in_order(container: Any, stream: Any, chosen: tuple[int, ...]) -> Iterator[tuple[int, Any, int]]:
    before = -1
    for index, picture in enumerate(container.decode(stream)):
        if index in chosen:
            yield index, picture, index - before
            before = index
        if index >= chosen[-1]:
            return


def _by_key_frames(container: Any, stream: Any, targets: list[_Target]) -> Iterator[tuple[int, Any, int]]:
    pictures: Iterator[Any] = iter(())
    position: int | None = None
    for target in targets:
        if position is None or target.key > position:
            container.seek(target.key, stream=stream, backward=True, any_frame=False)
            pictures = container.decode(stream)
        for decoded, picture in enumerate(pictures, 1):
            position = picture.pts
            if position is None or position >= target.time:
                yield target.number, picture, decoded
                break


def _upright(picture: Any) -> NDArray[np.uint8]:
    """Turn and mirror a frame by its display matrix (ISO/IEC 14496-12, 6.2.2): x' = ax + cy, y' = bx + dy."""
    pixels: NDArray[np.uint8] = picture.reformat(format="rgb24", threads=1).to_ndarray()
    if (matrix := picture.side_data.get("DISPLAYMATRIX")) is not None:
        a, b, _, c, d = np.frombuffer(bytes(matrix), np.int32)[:5].tolist()
        if abs(b) > abs(a):
            pixels, a, d = pixels.transpose(1, 0, 2), c, b
        pixels = np.ascontiguousarray(pixels[:: -1 if d < 0 else 1, :: -1 if a < 0 else 1])
    return pixels


def _label(data: bytes, name: str) -> str:
    if name == "mov":
        return "mov" if data[8:12] == b"qt  " or data[4:8] != b"ftyp" else "mp4"
    if name == "matroska":
        return "webm" if b"webm" in data[:64] else "matroska"
    return name

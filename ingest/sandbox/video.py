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
from numpy.typing import NDArray

from ingest.sandbox.decode import FORMATS, RGB_BYTES, DecodeError, Frame, Wanted, check_bytes, chosen, sample

# What may be decoded to reach the wanted frames, pixels: about 2 s of one core, unless it is said how many
# frames may be. A clip within it is decoded from its start; a longer one only from the key frame before
# each wanted frame; where even that is too much, the key frames themselves stand for the wanted ones, or
# frames behind them, as far as may be decoded.
_MOST_DECODED_PIXELS = 600_000_000
_STILL_BRANDS = {brand for image_format in FORMATS.values() for brand in image_format.brands}
_MOV_ATOMS = (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot")

# Names in a film need not be UTF-8, which PyAV takes by itself from 19 on (Python 3.12 and later).
_NAMES: dict[str, Any] = {"metadata_errors": "replace"} if int(av.__version__.partition(".")[0]) < 19 else {}

av.logging.set_level(None)


class _Target(NamedTuple):
    """A frame to reach: its number, its time, and the time of the key frame to enter by (stream units)."""

    number: int
    time: int
    key: int


def demuxer(data: bytes) -> str | None:
    """Name the demuxer for the bytes: "mov", "matroska" or "avi"; None where they are no such video."""
    if data[4:8] in _MOV_ATOMS:
        return None if data[4:8] == b"ftyp" and data[8:12] in _STILL_BRANDS else "mov"
    if data[:4] == b"\x1a\x45\xdf\xa3":
        return "matroska"
    if data[:4] == b"RIFF" and data[8:12] == b"AVI ":
        return "avi"
    return None


def video_frames(
    data: bytes, frames: Wanted, max_pixels: int, most_decoded: int | None = None
) -> Iterator[Frame]:
    """Decode frames of a video, turned as its metadata says.

    most_decoded: of all frames, how many may be decoded; None: as many as have so many pixels together.

    Deterministic: frames are chosen among those that the container really holds, not by its stated
    length. Raises DecodeError: unknown_format (also: no picture stream), too_many_pixels,
    out_of_memory, corrupt.
    """
    name = demuxer(data)
    if name is None:
        raise DecodeError("unknown_format", "no video of MP4, MOV, Matroska, WebM, AVI")
    try:
        yield from _frames(data, name, frames, max_pixels, most_decoded)
    except MemoryError as error:
        raise DecodeError("out_of_memory", "the video does not fit the memory limit") from error
    except (av.error.FFmpegError, ValueError, OverflowError, RuntimeError, LookupError) as error:
        raise DecodeError("corrupt", f"{type(error).__name__}: {error}") from error


def _frames(
    data: bytes, name: str, frames: Wanted, max_pixels: int, most_decoded: int | None
) -> Iterator[Frame]:
    label = _label(data, name)
    times, keys = _packets(data, name)
    if not times:
        raise DecodeError("corrupt", "the container holds no frame")
    wanted = chosen(len(times), frames)
    count = 0
    with open_film(BytesIO(data), name) as container:
        stream = _picture_stream(container)
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
    if not count:
        raise DecodeError("corrupt", "no frame can be decoded")


def open_film(file: BinaryIO, name: str) -> Any:
    """Open a film with the demuxer of that name, which reads nothing but the file. Raises what PyAV does."""
    options = {"protocol_whitelist": "none"} | ({"enable_drefs": "0"} if name == "mov" else {})
    return av.open(file, format=name, options=options, **_NAMES)


def _picture_stream(container: Any) -> Any:
    if not container.streams.video:
        raise DecodeError("unknown_format", "the container has no picture stream")
    return container.streams.video[0]


def _limit(stream: Any, max_pixels: int) -> int:
    """Hold the decoder to the limits; return the pixels of one frame."""
    if stream.codec_context is None:
        raise DecodeError("unknown_format", "no decoder for the picture stream")
    width, height = stream.codec_context.width, stream.codec_context.height
    check_bytes(width, height, _pixel_bytes(stream.codec_context.format), max_pixels)
    # The size may still change in mid-stream; then FFmpeg itself holds the limit.
    stream.codec_context.options = {"max_pixels": str(max_pixels)}
    stream.codec_context.thread_count = 1
    return int(width * height)


def _pixel_bytes(pixel_format: Any) -> float:
    """Bytes of a pixel of FFmpeg's format, as it is padded in memory; it is not always known in advance."""
    return max(RGB_BYTES, pixel_format.padded_bits_per_pixel / 8) if pixel_format else RGB_BYTES


def _packets(data: bytes, name: str) -> tuple[list[int], list[int]]:
    """Read all picture packets' times and those of the key frames; decodes nothing.

    Both sorted, in units of the stream's time base.
    """
    times, keys = [], []
    with open_film(BytesIO(data), name) as container:
        try:
            for packet in container.demux(_picture_stream(container)):
                when = packet.pts if packet.pts is not None else packet.dts
                if packet.size and when is not None and not packet.is_discard:
                    times.append(when)
                    if packet.is_keyframe:
                        keys.append(when)
        except av.error.FFmpegError:
            pass  # a damaged end: the packets before it are good
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
    pixels = picture.reformat(format="rgb24", threads=1).to_ndarray()
    # Degrees counter-clockwise, as np.rot90 turns.
    quarter_turns = round(picture.rotation / 90) % 4
    return np.ascontiguousarray(np.rot90(pixels, quarter_turns)) if quarter_turns else pixels


def _label(data: bytes, name: str) -> str:
    if name == "mov":
        return "mov" if data[8:12] == b"qt  " or data[4:8] != b"ftyp" else "mp4"
    if name == "matroska":
        return "webm" if b"webm" in data[:64] else "matroska"
    return name

"""Pictures and clips as the bytes of files."""

import zlib
from io import BytesIO
from typing import Any

import av
import numpy as np
import pytest
from PIL import Image

from ingest.sandbox.decode import DecodeError, image_frames


def photo(side: int = 256, container: str = "JPEG") -> bytes:
    """A square of noise."""
    pixels = np.random.default_rng(side).integers(0, 256, (side, side, 3), dtype=np.uint8)
    return encode(Image.fromarray(pixels), container)


def long_gif(side: int, times: int) -> bytes:
    """A square of grey, shown again and again: what takes long to decode though it is small."""
    one = encode(Image.new("L", (side, side)), "GIF")
    frames = 13 + 3 * 2 ** ((one[10] & 7) + 1)  # behind the header and its palette
    return one[:frames] + one[frames:-1] * times + one[-1:]


def slow_jpeg(side: int, scans: int) -> bytes:
    """A square of grey, its last scan sent again and again: each passes over every block of the picture."""
    whole = encode(Image.new("L", (side, side), 128), "JPEG", progressive=True)
    last, end = whole.rindex(b"\xff\xda"), -len(b"\xff\xd9")
    return whole[:end] + whole[last:end] * scans + whole[end:]


def grey_clip(
    container: str = "mp4",
    codec: str = "mpeg4",
    count: int = 40,
    key_every: int = 10,
    pixels: str = "yuv420p",
    **tags: str,
) -> bytes:
    """A clip of ten frames a second, frame n of the grey 5 n + 20; tags but the comment are by key."""
    buffer = BytesIO()
    options = {"movflags": "use_metadata_tags"} if tags.keys() - {"comment"} else {}
    with av.open(buffer, "w", format=container, options=options) as output:
        output.metadata.update(tags)
        stream: Any = output.add_stream(codec, rate=10)
        stream.options = {"sc_threshold": "1000000000"}  # no key frames but those asked for
        stream.bit_rate = 8_000_000
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = 64, 48, pixels, key_every
        for number in range(count):
            grey = np.full((48, 64, 3), 5 * number + 20, np.uint8)
            output.mux(stream.encode(av.VideoFrame.from_ndarray(grey, "rgb24")))
        output.mux(stream.encode())
    return buffer.getvalue()


def encode(image: Image.Image, container: str, **options: Any) -> bytes:
    buffer = BytesIO()
    image.save(buffer, container, **options)
    return buffer.getvalue()


def png_chunk(kind: bytes, content: bytes) -> bytes:
    return len(content).to_bytes(4) + kind + content + zlib.crc32(kind + content).to_bytes(4)


def rejected(data: bytes, limit: int = 1_000_000) -> str:
    """Why a file of more pixels than the limit, or of another kind, is no picture."""
    with pytest.raises(DecodeError) as error:
        list(image_frames(data, 8, limit))
    return error.value.reason

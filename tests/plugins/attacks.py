"""Files made to hurt whoever decodes them, drawn by a fixed generator: the same seed gives the same files."""

import io
import random
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from functools import cache

from media import encode, grey_clip, long_gif, photo, png_chunk, slow_jpeg
from PIL import Image

Attack = Callable[[random.Random, int], bytes]
"""Makes a file against a limit of pixels."""

_PNG = b"\x89PNG\r\n\x1a\n"
_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}  # of PNG's colour types


def attacks(count: int, max_pixels: int, seed: int = 25) -> Iterator[tuple[str, bytes]]:
    """So many files, each of the next family in turn, with its name; each by itself drawn from its number."""
    for number in range(count):
        make = FAMILIES[number % len(FAMILIES)]
        yield f"{make.__name__.strip('_')}-{number}", make(random.Random(f"{seed} {number}"), max_pixels)


def wide_png(width: int, height: int, depth: int = 8, colour: int = 2, real: bool = True) -> bytes:
    """A black PNG of any size, or one whose header alone says so."""
    row = 1 + (width * _CHANNELS[colour] * depth + 7) // 8
    left, packer, packed = row * height if real else 1, zlib.compressobj(1), b""
    while left:
        packed += packer.compress(bytes(min(left, 1_000_000)))
        left -= min(left, 1_000_000)
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    palette = png_chunk(b"PLTE", bytes(6)) if colour == 3 else b""
    end = png_chunk(b"IDAT", packed + packer.flush()) + png_chunk(b"IEND", b"")
    return _PNG + png_chunk(b"IHDR", head) + palette + end


def _sides(draw: random.Random, pixels: float) -> tuple[int, int]:
    width = max(1, int(pixels**0.5 * draw.choice([0.1, 0.5, 1, 2, 10])))
    return width, max(1, int(pixels / width))


@cache
def _samples() -> tuple[bytes, ...]:
    """A sound file of each kind."""
    kinds = ("JPEG", "PNG", "GIF", "WEBP", "TIFF", "BMP", "AVIF", "ICO", "PPM")
    clips = {"mp4": "mpeg4", "mov": "mpeg4", "matroska": "libx264", "webm": "libvpx", "avi": "mpeg4"}
    frames = [Image.new("RGB", (64, 64), (20 * n, 255 - 20 * n, 0)) for n in range(8)]
    animated = ("GIF", "PNG", "WEBP", "AVIF")
    moving = [encode(frames[0], kind, save_all=True, append_images=frames[1:]) for kind in animated]
    return (*(photo(96, kind) for kind in kinds), *moving, *(grey_clip(*clip) for clip in clips.items()))


def _png_beyond_the_limit(draw: random.Random, limit: int) -> bytes:
    depth, colour = draw.choice([(1, 0), (8, 0), (16, 0), (8, 2), (16, 2), (8, 3), (8, 4), (8, 6), (16, 6)])
    return wide_png(*_sides(draw, limit * draw.uniform(1, 2)), depth, colour, real=False)


def _png_at_the_limit(draw: random.Random, limit: int) -> bytes:
    depth, colour = draw.choice([(1, 0), (8, 0), (16, 0), (8, 2), (8, 3), (8, 4), (8, 6)])
    return wide_png(*_sides(draw, limit * (0.74 if colour in (4, 6) else 0.99)), depth, colour)


def _mode_at_its_limit(draw: random.Random, limit: int) -> bytes:
    """The most bytes for a pixel that decoders have, at, below and above what their mode is allowed."""
    modes = [("CMYK", "JPEG", 0.75), ("LAB", "TIFF", 0.75), ("I", "TIFF", 0.5), ("F", "TIFF", 0.5)]
    mode, container, share = draw.choice(modes)
    side = int((limit * share * draw.choice([0.98, 1.0, 1.3, 2])) ** 0.5)
    image = Image.new(mode, (side, side))
    return encode(image, container, **({} if container == "JPEG" else {"compression": "tiff_lzw"}))


def _modern_at_the_limit(draw: random.Random, limit: int) -> bytes:
    """WebP, AVIF and progressive JPEG: decoders that hold pictures of their own."""
    side = min(int((limit * draw.choice([0.4, 0.6, 0.99])) ** 0.5), 16_383)
    image = Image.new(draw.choice(["RGB", "RGBA"]), (side, side), (9, 99, 199))
    kind = draw.choice(["WEBP", "AVIF", "JPEG"])
    options = {
        "WEBP": {"lossless": True, "method": 0, "quality": 0},
        "AVIF": {"speed": 10, "subsampling": "4:4:4"},
    }
    progressive = {"progressive": True, "subsampling": 0}
    return encode(image.convert("RGB") if kind == "JPEG" else image, kind, **options.get(kind, progressive))


def _animation_at_the_limit(draw: random.Random, limit: int) -> bytes:
    side = int((limit * draw.choice([0.3, 0.55, 0.99])) ** 0.5)
    frames = [Image.new("RGB", (side, side), colour) for colour in ("red", "blue", "lime")]
    kind = draw.choice(["GIF", "PNG", "WEBP"])
    quick = {"lossless": True, "method": 0, "quality": 0} if kind == "WEBP" else {}
    return encode(frames[0], kind, save_all=True, append_images=frames[1:], **quick)


def _one_row(draw: random.Random, limit: int) -> bytes:
    """Crops are squares: what is one pixel high must not become one of so many millions."""
    sides = [int(limit * draw.choice([0.05, 0.5, 0.99])), 1]
    draw.shuffle(sides)
    return wide_png(*sides, colour=0)


def _million_frames(draw: random.Random, limit: int) -> bytes:
    return long_gif(draw.choice([1, 16, 64]), limit // 50)


def _slow_scans(draw: random.Random, limit: int) -> bytes:
    side = int((limit * draw.uniform(0.05, 0.3)) ** 0.5)
    return slow_jpeg(side, draw.choice([30, 300, 3_000]))


def _truncated(draw: random.Random, _: int) -> bytes:
    sample = draw.choice(_samples())
    return sample[: draw.randrange(len(sample))]


def _mutated(draw: random.Random, _: int) -> bytes:
    """Bytes of its first kilobyte, which say sizes and counts, exchanged for the extremes."""
    data = bytearray(draw.choice(_samples()))
    for _place in range(draw.randint(1, 12)):
        place = draw.randrange(min(len(data), draw.choice([64, 1_000, len(data)])))
        data[place] = draw.choice([0, 1, 0x7F, 0x80, 0xFF, draw.randrange(256)])
    return bytes(data)


def _sizes_mutated(draw: random.Random, _: int) -> bytes:
    """A length of four bytes somewhere becomes one that no file has."""
    data = bytearray(draw.choice(_samples()))
    place = draw.randrange(len(data) - 4)
    data[place : place + 4] = draw.choice(
        [b"\xff" * 4, b"\x7f\xff\xff\xff", bytes(4), b"\0\0\0\1", b"\x80\0\0\0"]
    )
    return bytes(data)


def _polyglot(draw: random.Random, _: int) -> bytes:
    first, second = draw.sample(_samples(), 2)
    cut = draw.choice([len(first), len(first) // 2, 12, 4])
    glue = draw.choice([b"", b"PK\3\4", b"%PDF-1.7\n", b"<script>", b"\0" * 4096])
    return first[:cut] + glue + second


def _playlist(draw: random.Random, _: int) -> bytes:
    name = draw.choice(["http://127.0.0.1:9/x.ts", "file:///etc/passwd", "concat:/etc/passwd", "data:,x"])
    text = draw.choice(
        [
            f"#EXTM3U\n#EXT-X-MEDIA-SEQUENCE:0\n#EXTINF:10.0,\n{name}\n#EXT-X-ENDLIST\n",
            f"ffconcat version 1.0\nfile '{name}'\n",
            f"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nt=0 0\nm=video 9 RTP/AVP 96\na=control:{name}\n",
            f'<?xml version="1.0"?><MPD><BaseURL>{name}</BaseURL></MPD>',
            f"RIFF....AVI {name}",
        ]
    )
    return draw.choice([b"", b"\xef\xbb\xbf", photo(96), b"\0\0\0\x18ftypmp42"]) + text.encode()


def _year_of_video(draw: random.Random, _: int) -> bytes:
    """An MP4 whose boxes claim a year, or more frames than it has bytes."""
    data = bytearray(grey_clip("mp4", "mpeg4"))
    for name, at in ((b"mvhd", 16), (b"mdhd", 16), (b"tkhd", 20)):
        place = data.index(name) + 4 + at
        data[place : place + 4] = struct.pack(">I", draw.choice([31_536_000 * 100, 2**32 - 1]))
    if draw.random() < 0.7:
        table = draw.choice([b"stts", b"stsz", b"stsc", b"stco"])
        place = data.index(table) + 8 + (4 if table == b"stsz" else 0)
        data[place : place + 4] = struct.pack(">I", draw.choice([2**32 - 1, 2**31, 31_536_000, 10_000_000]))
    return bytes(data)


def _icon_with_a_bomb(draw: random.Random, limit: int) -> bytes:
    bomb = wide_png(*_sides(draw, limit * draw.uniform(0.9, 2)), 1, 0)
    head = struct.pack("<HHHBBBBHHII", 0, 1, 1, 16, 16, 0, 0, 1, 32, len(bomb), 22)
    return head + bomb


def _tiff_in_circles(draw: random.Random, limit: int) -> bytes:
    """A TIFF whose directory follows itself, or whose one strip is packed to less than a thousandth."""
    grey = Image.new("L", _sides(draw, limit * 0.9))
    data = bytearray(encode(grey, "TIFF", compression="tiff_adobe_deflate"))
    if draw.random() < 0.5:
        (directory,) = struct.unpack("<I", data[4:8])
        (entries,) = struct.unpack("<H", data[directory : directory + 2])
        end = directory + 2 + 12 * entries
        data[end : end + 4] = data[4:8]
    return bytes(data)


def _box_with_a_bomb(draw: random.Random, limit: int) -> bytes:
    """An AVIF, or what calls itself a HEIF, whose header says another size than its picture has."""
    data = bytearray(photo(96, "AVIF"))
    place = data.index(b"ispe") + 8
    data[place : place + 8] = struct.pack(">II", *_sides(draw, limit * draw.uniform(0.5, 2)))
    if draw.random() < 0.5:
        data[8:12] = draw.choice([b"heic", b"mif1", b"avis", b"msf1"])
    return bytes(data)


def _packed_text(draw: random.Random, limit: int) -> bytes:
    """A PNG with a profile or texts that unpack to hundreds of megabytes."""
    packer = zlib.compressobj(9)
    packed = b"".join(packer.compress(bytes(1_000_000)) for _ in range(limit // 200_000)) + packer.flush()
    name, head = draw.choice([(b"iCCP", b"x\0\0"), (b"zTXt", b"x\0\0"), (b"iTXt", b"x\0\1\0\0\0")])
    data = photo(96, "PNG")
    return data[:33] + png_chunk(name, head + packed) * draw.choice([1, 3]) + data[33:]


def _frames_that_are_not_there(draw: random.Random, _: int) -> bytes:
    """An APNG that counts frames without end."""
    data = photo(96, "PNG")
    count = draw.choice([2**31 - 1, 1_000_000, 2])
    return data[:33] + png_chunk(b"acTL", struct.pack(">II", count, 0)) + data[33:]


def _archive(draw: random.Random, _: int) -> bytes:
    buffer = io.BytesIO()
    if draw.random() < 0.5:
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
            packed.writestr("../bomb.png", bytes(10_000_000))
    else:
        with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
            member = tarfile.TarInfo("../../bomb")
            member.size = 10_000_000
            tar.addfile(member, io.BytesIO(bytes(member.size)))
    return buffer.getvalue()


def _markup(draw: random.Random, _: int) -> bytes:
    entities = "".join(f'<!ENTITY a{n + 1} "{f"&a{n};" * 10}">' for n in range(9))
    size = draw.choice(["1e9", "100000"])
    svg = f'<svg xmlns="http://www.w3.org/2000/svg" width="{size}" height="{size}"><text>&a9;</text></svg>'
    return f'<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a0 "x">{entities}]>{svg}'.encode()


def _noise_behind_a_signature(draw: random.Random, _: int) -> bytes:
    sample = draw.choice(_samples())
    return sample[: draw.choice([4, 12, 33, 64])] + draw.randbytes(draw.choice([10, 5_000, 500_000]))


def _large_file(draw: random.Random, limit: int) -> bytes:
    """A picture at the limit with megabytes behind it."""
    return wide_png(*_sides(draw, limit * 0.99), 1, 0) + bytes(int(limit * draw.choice([0.5, 1.9, 2.1])))


FAMILIES: tuple[Attack, ...] = (
    _png_beyond_the_limit,
    _png_at_the_limit,
    _mode_at_its_limit,
    _modern_at_the_limit,
    _animation_at_the_limit,
    _one_row,
    _million_frames,
    _slow_scans,
    _truncated,
    _mutated,
    _sizes_mutated,
    _polyglot,
    _playlist,
    _year_of_video,
    _icon_with_a_bomb,
    _tiff_in_circles,
    _box_with_a_bomb,
    _packed_text,
    _frames_that_are_not_there,
    _archive,
    _markup,
    _noise_behind_a_signature,
    _large_file,
)

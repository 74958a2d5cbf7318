"""The structure of a file: boxes, pages, further pictures, its end, its likely format."""

import re
import struct
from collections.abc import Iterator
from io import BytesIO
from typing import NamedTuple

from PIL.TiffImagePlugin import ImageFileDirectory_v2

AVIF_BRANDS = (b"avif", b"avis")
HEIF_BRANDS = (b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1")
"""Major brands that name a still (ISO/IEC 23008-12); there are more than anybody lists."""
_MOV_BOXES = (b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip", b"pnot")
_CODED = (b"hvc1", b"av01", b"grid", b"iovl", b"iden", b"avc1", b"jpeg", b"vvc1", b"j2k1", b"unci")


class Box(NamedTuple):
    """A box of an ISO base media file, and where its content lies by its own word: it may end beyond."""

    kind: bytes
    start: int
    end: int


def boxes(data: bytes, start: int = 0, end: int | None = None) -> Iterator[Box]:
    """Walk the boxes between two places (ISO/IEC 14496-12, 4.2)."""
    stop = len(data) if end is None else min(end, len(data))
    while start + 8 <= stop:
        size, kind = struct.unpack_from(">I4s", data, start)
        head = 8
        if size == 1 and start + 16 <= stop:
            (size,), head = struct.unpack_from(">Q", data, start + 8), 16
        size = size or stop - start
        if size < head:
            return
        yield Box(kind, start + head, start + size)
        start += size


def demuxer(data: bytes) -> str | None:
    """Name the demuxer of a film by its first 4 KiB: "mov", "matroska" or "avi"; None: it is no such film.

    An ISO base media file that describes pictures is a still, if its brand says so or it has no film.
    """
    if data[4:8] in _MOV_BOXES:
        return None if data[8:12] == b"crx " or _pictures(data) else "mov"
    if data[:4] == b"\x1a\x45\xdf\xa3":
        return "matroska"
    return "avi" if data[:4] == b"RIFF" and data[8:12] == b"AVI " else None


def _pictures(data: bytes) -> Box | None:
    """Return the box that describes a still's pictures; None: the file is no still."""
    top = {box.kind: box for box in boxes(data)}
    meta = top.get(b"meta")
    if meta is None or b"pict" not in data[meta.start : meta.start + 32]:
        return None
    return meta if b"moov" not in top or data[8:12] in AVIF_BRANDS + HEIF_BRANDS else None


def with_known_brand(data: bytes) -> bytes:
    """Give a still the brand that its decoder knows, which follows from how its pictures are coded."""
    if data[4:8] != b"ftyp" or (meta := _pictures(data)) is None:
        return data
    is_avif = b"av01" in data[meta.start : meta.end]
    known = AVIF_BRANDS if is_avif else HEIF_BRANDS
    return data if data[8:12] in known else data[:8] + known[0] + data[12:]


def further_pictures(data: bytes) -> int:
    """Count the pictures of a HEIF or AVIF beside the primary one, without thumbnails, layers and tiles.

    Where that is itself a tile or a thumbnail, the picture that it belongs to is a further one; so is a film.
    """
    if (meta := _pictures(data)) is None:
        return 0
    parts, pictures, primary = set[int](), set[int](), -1
    for kind, start, end in boxes(data, meta.start + 4, meta.end):
        version = data[start]
        number = "I" if version > (1 if kind == b"iinf" else 0) else "H"
        if kind == b"pitm":
            (primary,) = struct.unpack_from(f">{number}", data, start + 4)
        for box in boxes(data, start + (8 if version else 6), end) if kind == b"iinf" else ():
            form = ">I2x4s" if data[box.start] == 3 else ">H2x4s"
            item, coding = struct.unpack_from(form, data, box.start + 4)
            pictures |= {item} if coding in _CODED else set()
        for box in boxes(data, start + 4, end) if kind == b"iref" else ():
            many = (box.end - box.start - 2) // struct.calcsize(number) - 1
            item, _, *others = struct.unpack_from(f">{number}H{many}{number}", data, box.start)
            parts |= {b"dimg": set(others), b"thmb": {item}, b"auxl": {item}}.get(box.kind, set())
    # The frames of an AVIF's film are looked at, of which its primary picture is one.
    film = data[8:12] != b"avis" and any(box.kind == b"moov" for box in boxes(data))
    return len(pictures - parts - {primary}) + film


def count_heif_pixels(data: bytes) -> int:
    """Return the most pixels that a HEIF says of a picture, by its first MiB; 0 of what is none."""
    if data[4:8] != b"ftyp" or data[8:12] not in HEIF_BRANDS:
        return 0
    sizes = re.findall(rb"ispe\0{4}(.{4})(.{4})", data[: 2**20], re.DOTALL)
    return max((int.from_bytes(width) * int.from_bytes(height) for width, height in sizes), default=0)


class TiffPage(NamedTuple):
    """A picture of a TIFF: its directory's place, whether it is a smaller copy or a mask, or raw."""

    offset: int
    is_part: bool
    is_raw: bool


_MOST_PAGES = 1000
_NEW_KIND, _OLD_KIND, _PHOTOMETRIC, _SUB_DIRECTORIES, _DNG_VERSION = 254, 255, 262, 330, 50706


def pages(data: bytes) -> list[TiffPage]:
    """Find the pictures of a TIFF, also those that lie below another, in the file's order."""
    file, header = BytesIO(data), data[: 16 if data[2:3] == b"+" or data[3:4] == b"+" else 8]
    waiting, by_offset = [ImageFileDirectory_v2(header).next], dict[int, TiffPage]()
    while waiting and len(by_offset) < _MOST_PAGES:
        offset = waiting.pop(0)
        if not offset or offset in by_offset:
            continue
        file.seek(offset)
        tags = ImageFileDirectory_v2(header)
        tags.load(file)
        is_part = bool(tags.get(_NEW_KIND, 0) & 5) or tags.get(_OLD_KIND) == 2
        is_raw = tags.get(_PHOTOMETRIC) in (32803, 34892) or _DNG_VERSION in tags or data[8:10] == b"CR"
        by_offset[offset] = TiffPage(offset, is_part, is_raw)
        below = tags.get(_SUB_DIRECTORIES, ())
        waiting = [*(below if isinstance(below, tuple) else [below]), tags.next, *waiting]
    return list(by_offset.values())


def at_page(data: bytes, page: TiffPage) -> bytes:
    """Return the TIFF with this page as its first."""
    big, order = b"+" in data[2:4], "<" if data[:2] == b"II" else ">"
    at, form = (8, "Q") if big else (4, "I")
    return data[:at] + struct.pack(order + form, page.offset) + data[at + struct.calcsize(form) :]


def ends_early(data: bytes) -> bool:
    """Whether a film's or an animation's container says that it is longer than the file."""
    if data[:4] == b"RIFF":
        (size,) = struct.unpack_from("<I", data, 4)
        return bool(len(data) < size + 8 < 2**32)
    if data[:4] == b"\x1a\x45\xdf\xa3":
        at = data.find(b"\x18\x53\x80\x67", 0, 4096) + 4
        width = 9 - data[at].bit_length()
        unknown = (1 << 7 * width) - 1
        size = int.from_bytes(data[at : at + width]) & unknown
        return size != unknown and at + width + size > len(data)
    cut = (box.kind for box in boxes(data) if box.end > len(data))
    return any(kind in (b"mdat", b"moov", b"moof", b"meta") for kind in cut)


def jpeg_is_cut(data: bytes) -> bool:
    """Whether a JPEG's picture has no end. Behind its header, only the end's marker may look like it."""
    at = 2
    while data[at : at + 1] == b"\xff" and data[at + 1 : at + 2] != b"\xda":
        at += 1 if data[at + 1 : at + 2] == b"\xff" else 2 + int.from_bytes(data[at + 2 : at + 4])
    return data.find(b"\xff\xd9", at) < 0


def whole_chunks(data: bytes) -> bytes:
    """Return a RIFF file without the chunk that it is cut in."""
    at = 12
    while at + 8 <= len(data):
        (size,) = struct.unpack_from("<I", data, at + 4)
        if at + 8 + size > len(data):
            break
        at += 8 + size + size % 2
    return data[:4] + struct.pack("<I", at - 8) + data[8:at]


_FILM, _PICTURE = "send it as MP4, MOV, Matroska, WebM or AVI", "send it as JPEG, PNG or TIFF"
_PARTS, _BYTES = "take the pictures out and send each by itself", "send the bytes of the file itself"
RAW = "export the photograph as JPEG, PNG or TIFF"
_OTHER_FORMATS = (
    (rb"\0\0\x01[\xb3\xba]|G.{187}G|.{4}G.{191}G", "an MPEG stream", _FILM),
    (rb"\0\0\0?\x01[\x06\x09\x27\x40\x67]", "a film without a container", _FILM),
    (rb"FLV|0\x26\xb2\x75|OggS|\.RMF", "Flash, Windows Media, Ogg or RealMedia", _FILM),
    (rb"ID3|\xff[\xe2-\xfb]|fLaC|RIFF.{4}WAVE|FORM.{4}AIF|#!AMR", "sound", "send a picture or a film"),
    (rb"FUJIFILMCCD|II[RU]|MMOR|FOVb|\0MRM|.{4}ftypcrx ", "a camera's raw file", RAW),
    (rb"\0{3}\x0c(jP|JXL) |\xff\x4f\xff\x51|\xff\x0a", "JPEG 2000 or JPEG XL", _PICTURE),
    (rb"8BPS|%!PS|v/1\x01|DDS |icns", "Photoshop, PostScript, OpenEXR, DDS or an Apple icon", _PICTURE),
    (rb"[^<]{0,64}(<[?!][^<]*)*<svg", "a drawing (SVG)", _PICTURE),
    (rb".{0,1000}?%PDF-", "a PDF", _PARTS),
    (
        rb"PK[\x03\x05]|\x1f\x8b|7z\xbc\xaf|Rar!|\xd0\xcf\x11\xe0|.{257}ustar",
        "an archive or a document",
        _PARTS,
    ),
    (rb"--[^\r\n]+\r?\nContent-", "a form (multipart)", _BYTES),
    (rb"(\xef\xbb\xbf)?\s*<([!?a-zA-Z])", "a web page or XML", _BYTES),
    (rb"\s*([{\[\"]|data:|https?:|file:|s3:)", "a data URL, JSON or a link", _BYTES),
    (rb"[A-Za-z0-9+/_\-\s]{16,}=*\s*$", "base64", _BYTES),
    (rb"[\t\n\r\x20-\x7e\x80-\xff]{4,}$", "text", "send a picture or a film"),
)


def looks_like(data: bytes) -> str:
    """Name in one line the likely format of bytes in no supported one, and the formats to send."""
    for pattern, kind, advice in _OTHER_FORMATS:
        if re.match(pattern, data[:2048], re.DOTALL):
            return f"it looks like {kind}, which is not judged: {advice}"
    return "it looks like no picture or film: send JPEG, PNG, WebP, GIF, TIFF, AVIF, HEIF, MP4, MOV or AVI"

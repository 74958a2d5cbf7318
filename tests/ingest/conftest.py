"""Files that no encoder among the dependencies makes, built here by hand."""

import struct
from fractions import Fraction

import av
import pytest


@pytest.fixture
def heif():
    """Make a HEIF of pictures, uint8 RGB of even sides, with the one that counts, its turn and its EXIF."""
    return _heif


def _heif(pictures, primary=0, quarter_turns=0, exif=None, brand=b"heic", bits=8):
    coded = [_hevc(picture, bits) for picture in pictures]
    blobs = [slices for _, slices in coded]
    entries = [_item(number, b"hvc1") for number in range(1, len(coded) + 1)]
    properties, owners, links = [], [], b""
    for number, (picture, (configuration, _)) in enumerate(zip(pictures, coded, strict=True), 1):
        size = struct.pack(">II", picture.shape[1], picture.shape[0])
        turn = _box(b"irot", bytes([quarter_turns]))
        properties += [configuration, _full_box(b"ispe", 0, size), turn]
        indices = bytes([0x80 | (3 * number - 2), 3 * number - 1, 0x80 | 3 * number])
        owners.append(struct.pack(">HB", number, len(indices)) + indices)
    if exif is not None:
        number = len(entries) + 1
        entries.append(_item(number, b"Exif"))
        blobs.append(struct.pack(">I", 0) + exif)
        links = _full_box(b"iref", 0, _box(b"cdsc", struct.pack(">HHH", number, 1, primary + 1)))

    def meta(first):
        places = b""
        for number, blob in enumerate(blobs, 1):
            places += struct.pack(">HHHII", number, 0, 1, first, len(blob))
            first += len(blob)
        return _full_box(
            b"meta",
            0,
            _full_box(b"hdlr", 0, struct.pack(">I4s", 0, b"pict"), bytes(13)),
            _full_box(b"pitm", 0, struct.pack(">H", primary + 1)),
            _full_box(b"iloc", 0, b"\x44\x00", struct.pack(">H", len(blobs)), places),
            _full_box(b"iinf", 0, struct.pack(">H", len(entries)), *entries),
            links,
            _box(
                b"iprp",
                _box(b"ipco", *properties),
                _full_box(b"ipma", 0, struct.pack(">I", len(owners)), *owners),
            ),
        )

    head = _box(b"ftyp", brand, bytes(4), b"mif1", b"heic")
    return head + meta(len(head) + len(meta(0)) + 8) + _box(b"mdat", *blobs)


def _hevc(picture, bits):
    """Encode one picture: its hvcC box, and its slices, each behind its length."""
    encoder = av.CodecContext.create("libx265", "w")
    encoder.height, encoder.width = picture.shape[:2]
    encoder.pix_fmt, encoder.time_base = "yuv420p10le" if bits == 10 else "yuv420p", Fraction(1, 1)
    encoder.options = {"crf": "4", "x265-params": "log-level=none:pools=none:frame-threads=1:info=0"}
    frame = av.VideoFrame.from_ndarray(picture, "rgb24").reformat(format=encoder.pix_fmt)
    stream = b"".join(bytes(packet) for packet in encoder.encode(frame) + encoder.encode(None))
    units = [unit.rstrip(b"\0") for unit in stream.split(b"\0\0\1") if unit.rstrip(b"\0")]
    kinds = {32: b"", 33: b"", 34: b""}  # video, sequence and picture parameters
    slices = b""
    for unit in units:
        kind = unit[0] >> 1 & 63
        length = len(unit)
        if kind in kinds:
            kinds[kind] = struct.pack(">BHH", 0x80 | kind, 1, length) + unit
        else:
            slices += struct.pack(">I", length) + unit
    # ISO/IEC 14496-15, 8.3.3.1: profile, tier and level stand at the beginning of the sequence's parameters.
    profile = kinds[33][5:].replace(b"\0\0\3", b"\0\0")[3:15]
    fixed = b"\1" + profile + b"\xf0\0\xfc\xfd" + bytes([0xF0 + bits, 0xF0 + bits, 0, 0, 15, len(kinds)])
    return _box(b"hvcC", fixed, *kinds.values()), slices


def _item(number, kind):
    return _full_box(b"infe", 2, struct.pack(">HH4s", number, 0, kind), b"\0")


def _box(kind, *parts):
    body = b"".join(parts)
    return struct.pack(">I4s", 8 + len(body), kind) + body


def _full_box(kind, version, *parts):
    return _box(kind, struct.pack(">I", version << 24), *parts)

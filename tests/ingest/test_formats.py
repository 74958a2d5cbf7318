"""The still formats beyond what a browser shows: HEIF from phones, icons, portable maps."""

import struct
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from attacks import wide_png
from media import encode, rejected
from PIL import Image

from ingest.records import CropPlan, MediaPlan
from ingest.sandbox import decode
from ingest.sandbox.child import most_processor_s
from ingest.sandbox.containers import HEIF_BRANDS, demuxer
from ingest.sandbox.decode import FORMATS, image_frames
from ingest.sandbox.extract import extract, find_faces
from ingest.sandbox.sandbox import Sandbox
from ingest.settings import IngestSettings

LIMIT = 1_000_000
PLAN = MediaPlan(crops=CropPlan(crop_px=16, patches=4, face_patches=0))
QUARTERS = np.zeros((64, 96, 3), np.uint8)
QUARTERS[:32, :48], QUARTERS[32:, 48:] = (200, 40, 40), (30, 60, 220)


def shown(data, limit=LIMIT):
    (frame,) = image_frames(data, 8, limit)
    assert frame.time_s is None
    return frame.pixels


@pytest.mark.parametrize("quarter_turns", range(4))
@pytest.mark.parametrize("orientation", [None, 1, 3, 6, 8])
def test_a_heif_is_turned_once_and_by_its_own_word(heif, quarter_turns, orientation):
    tags = Image.Exif()
    tags[0x0112] = orientation
    exif = tags.tobytes() if orientation else None
    data = heif([QUARTERS], quarter_turns=quarter_turns, exif=exif)
    upright = np.rot90(QUARTERS, quarter_turns).astype(int)
    assert shown(data).shape == upright.shape
    assert np.abs(shown(data) - upright).mean() < 2


@pytest.mark.parametrize("primary", [0, 1])
def test_of_several_pictures_in_a_heif_the_primary_is_shown(heif, primary):
    grey = np.full((32, 32, 3), 128, np.uint8)
    assert shown(heif([QUARTERS, grey], primary)).shape == (QUARTERS, grey)[primary].shape


@pytest.mark.parametrize("brand", HEIF_BRANDS)
def test_no_brand_of_heif_is_taken_for_a_video(heif, brand):
    data = heif([QUARTERS], brand=brand)
    assert demuxer(data) is None
    decoded = extract(data, PLAN, LIMIT)
    assert (decoded.kind, decoded.format, decoded.width, decoded.height) == ("image", "HEIF", 96, 64)


@pytest.mark.parametrize("brand", [b"1pic", b"mif2", b"isom"])
def test_a_still_is_told_from_a_film_by_what_it_holds(heif, brand):
    decoded = extract(heif([QUARTERS], brand=brand), PLAN, LIMIT)
    assert (decoded.kind, decoded.format, decoded.others) == ("image", "HEIF", 0)
    avif = encode(Image.fromarray(QUARTERS), "AVIF")
    assert extract(avif[:8] + brand + avif[12:], PLAN, LIMIT).format == "AVIF"


def one_of_each(heif):
    options = {"ICO": {"sizes": [(96, 64)]}}
    saved = [
        encode(Image.fromarray(QUARTERS), name, **options.get(name, {})) for name in FORMATS if name != "HEIF"
    ]
    return [*saved, heif([QUARTERS])]


def test_what_was_not_looked_at_is_counted(heif):
    picture = Image.fromarray(QUARTERS)
    files = [
        heif([QUARTERS, QUARTERS[:32], QUARTERS[:16]]),
        encode(picture, "TIFF", save_all=True, append_images=[picture, picture]),
        encode(picture, "MPO", save_all=True, append_images=[picture, picture]),
        encode(picture, "ICO", sizes=[(16, 16), (32, 32), (48, 32)]),
    ]
    for data in files:
        decoded = extract(data, PLAN, LIMIT)
        assert (decoded.kind, decoded.others, decoded.frame_numbers) == ("image", 2, (0,))
    for data in one_of_each(heif):
        assert extract(data, PLAN, LIMIT).others == 0


@pytest.mark.parametrize("order", ["<", ">"])
def test_of_a_tiff_whose_first_page_is_a_smaller_copy_the_whole_picture_is_judged(order):
    """The whole one lies in a directory below the first, or behind it."""
    grey, small = bytes(range(0, 200, 2)) * 100, bytes(16)

    def directory(side, at, following, more):
        tags = {256: side, 257: side, 258: 8, 259: 1, 262: 1, 273: at, 278: side, 279: side * side} | more
        entries = [struct.pack(order + "HHII", tag, 4, 1, value) for tag, value in sorted(tags.items())]
        entries = [struct.pack(order + "H", len(entries)), *entries, struct.pack(order + "I", following)]
        return b"".join(entries)

    for below in (True, False):
        first = directory(4, 300, 0 if below else 500, {254: 1, 330: 500} if below else {254: 1})
        head = struct.pack(order + "2sHI", b"II" if order == "<" else b"MM", 42, 8)
        data = (head + first).ljust(300, b"\0") + small
        data = (data.ljust(500, b"\0") + directory(100, 700, 0, {})).ljust(700, b"\0") + grey
        assert shown(data).shape == (100, 100, 3)
        assert extract(data, PLAN, LIMIT).others == 0


@pytest.mark.slow
def test_a_large_photograph_is_judged_whatever_was_decoded_before_it(heif):
    large = heif([np.tile(QUARTERS, (40, 40, 1))])
    with Sandbox(IngestSettings()) as sandbox:
        crops = [sandbox.submit(large, PLAN).result(60).crops for _ in range(12)]
    assert all(np.array_equal(crops[0], later) for later in crops)


def test_ten_bits_a_channel_keep_their_upper_eight(heif):
    eight, ten = (shown(heif([QUARTERS], bits=bits)).astype(int) for bits in (8, 10))
    assert np.abs(eight - ten).max() <= 6


def test_a_large_heif_has_up_to_twice_the_processor_time(heif):
    data, size, usual = heif([QUARTERS]), struct.pack(">II", 96, 64), most_processor_s(b"")
    for width, height, times in ((96, 64, 1), (6000, 6250, 1.5), (8192, 6144, 2), (2**31, 2**31, 2)):
        claimed = data.replace(size, struct.pack(">II", width, height))
        assert most_processor_s(claimed) == pytest.approx(times * usual, rel=0.01)
        assert most_processor_s(b"\0\0\0\0ftypisom" + claimed[12:]) == usual


def test_a_picture_longer_than_the_decoder_reads_is_too_large_and_not_corrupt(heif, monkeypatch):
    data = heif([QUARTERS])
    broken = data[: data.index(b"mdat") + 8].ljust(len(data), b"\0")
    assert rejected(broken, LIMIT) == "corrupt"
    monkeypatch.setattr(decode, "_MOST_HEVC_BYTES", 100)
    assert rejected(broken, LIMIT) == "too_large"


def test_a_heif_beyond_the_pixel_limit_is_refused(heif):
    assert rejected(heif([QUARTERS]), 96 * 64 - 1) == "too_many_pixels"
    assert len(shown(heif([QUARTERS]), 96 * 64)) == 64


def test_a_heif_whose_header_lies_about_its_size_is_no_way_around_the_limit(heif):
    data = heif([QUARTERS])
    small = data.replace(struct.pack(">II", 96, 64), struct.pack(">II", 16, 16))
    assert small != data
    assert rejected(small, 96 * 64 - 1) in ("too_many_pixels", "corrupt")


def test_a_heif_cut_short_anywhere_has_a_reason(heif):
    data = heif([QUARTERS])
    for length in range(12, len(data), 97):
        assert rejected(data[:length]) in ("corrupt", "unknown_format")


@pytest.mark.parametrize(
    ("container", "mode", "colour", "expected"),
    [
        ("PPM", "RGB", (200, 100, 50), (200, 100, 50)),
        ("PPM", "L", 90, (90, 90, 90)),
        ("PPM", "1", 1, (255, 255, 255)),
        ("PPM", "I;16", 0x1234, (0x12, 0x12, 0x12)),
        ("ICO", "RGB", (200, 100, 50), (200, 100, 50)),
        ("ICO", "RGBA", (10, 10, 10, 0), (255, 255, 255)),
    ],
)
def test_portable_maps_and_icons_become_rgb(container, mode, colour, expected):
    pixels = shown(encode(Image.new(mode, (32, 32), colour), container))
    assert pixels.shape == (32, 32, 3)
    assert tuple(pixels[8, 16].tolist()) == expected


def test_plain_portable_maps_are_read_too():
    assert shown(b"P3\n# a comment\n2 1\n255\n1 2 3  4 5 6\n").tolist() == [[[1, 2, 3], [4, 5, 6]]]


@pytest.mark.parametrize("data", [b"P6\n99999 99999\n255\n", b"P5\n0 5\n255\n", b"P6\n8 8\n255\nshort"])
def test_a_portable_map_that_promises_too_much_has_a_reason(data):
    assert rejected(data) in ("too_many_pixels", "corrupt")


def test_of_an_icon_the_largest_picture_is_shown():
    sizes = [(16, 16), (48, 48), (32, 32)]
    assert shown(encode(Image.new("RGB", (64, 64), "red"), "ICO", sizes=sizes)).shape == (48, 48, 3)


def test_an_icon_that_hides_a_bomb_is_refused():
    png = wide_png(4000, 4000, depth=1, colour=0)
    entry = struct.pack("<BBBBHHII", 16, 16, 0, 0, 1, 32, len(png), 22)
    assert rejected(struct.pack("<HHH", 0, 1, 1) + entry + png) == "too_many_pixels"


def test_a_confined_child_decodes_every_format(heif):
    lab = encode(Image.new("LAB", (32, 32), (150, 128, 128)), "TIFF")
    with Sandbox(IngestSettings()) as sandbox:
        formats = set()
        for data in one_of_each(heif):
            decoded = sandbox.submit(data, PLAN).result(60)
            formats.add(decoded.format)
            np.testing.assert_array_equal(decoded.crops, extract(data, PLAN, LIMIT).crops)
        assert formats == set(FORMATS)
        assert sandbox.submit(lab, PLAN).result(60).format == "TIFF"


@pytest.mark.slow
def test_threads_find_at_once_what_one_finds():
    # A detector that threads share takes the process with it: a picture of any kind does.
    rng = np.random.default_rng(0)
    pictures = [rng.integers(0, 256, (90 + 8 * number, 100, 3), dtype=np.uint8) for number in range(12)]
    alone = [find_faces(picture, 3) for picture in pictures]
    with ThreadPoolExecutor(4) as threads:
        for _ in range(20):
            assert list(threads.map(lambda picture: find_faces(picture, 3), pictures)) == alone

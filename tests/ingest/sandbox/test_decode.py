import struct
import tracemalloc
from io import BytesIO

import av
import numpy as np
import pytest
from media import encode, grey_clip, rejected
from PIL import Image

from ingest.records import CropPlan, MediaPlan
from ingest.sandbox.decode import DecodeError, image_frames, sample, to_rgb
from ingest.sandbox.extract import extract
from ingest.sandbox.video import video_frames

LIMIT = 1_000_000


def pixels(data):
    (frame,) = image_frames(data, 8, LIMIT)
    return frame.pixels


@pytest.mark.parametrize("container", ["GIF", "PNG", "WEBP", "AVIF"])
def test_an_animation_is_a_video_and_a_picture_in_the_same_container_none(container):
    images = [Image.new("RGB", (16, 16), (60 * number, 255 - 60 * number, 0)) for number in range(4)]
    moving = encode(images[0], container, save_all=True, append_images=images[1:], duration=100)
    crops = CropPlan(crop_px=8, patches=1, face_patches=0)
    both = moving, encode(images[0], container)
    kinds = [extract(data, MediaPlan(crops=crops), LIMIT).kind for data in both]
    assert kinds == ["video", "image"]


@pytest.mark.parametrize("container", ["JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "AVIF"])
def test_each_format_of_the_list_becomes_rgb(container):
    (frame,) = image_frames(encode(Image.new("RGB", (40, 30), (200, 100, 50)), container), 8, LIMIT)
    assert frame.format == container
    assert frame.time_s is None
    assert frame.pixels.shape == (30, 40, 3)
    assert np.abs(frame.pixels[15, 20].astype(int) - (200, 100, 50)).max() < 12


@pytest.mark.parametrize("container", ["TGA", "DDS", "PCX", "SGI", "EPS"])
def test_a_format_beyond_the_list_is_unknown(container):
    assert rejected(encode(Image.new("RGB", (32, 32)), container)) == "unknown_format"


@pytest.mark.parametrize(
    ("mode", "colour", "expected"),
    [
        ("1", 1, 255),
        ("L", 90, 90),
        ("LA", (90, 0), 255),
        ("LA", (90, 255), 90),
        ("RGBA", (10, 10, 10, 0), 255),
        ("RGBA", (10, 10, 10, 255), 10),
        ("CMYK", (0, 0, 0, 255), 0),
        ("I;16", 0x1234, 0x12),
        ("I", 0xFF00, 255),
        ("F", 0.5, 128),
        ("F", 77.0, 77),
    ],
)
def test_each_mode_becomes_8_bit_rgb_as_documented(mode, colour, expected):
    rgb = to_rgb(Image.new(mode, (3, 2), colour))
    assert rgb.mode == "RGB"
    assert set(np.asarray(rgb).ravel().tolist()) == {expected}


def test_a_float_picture_beyond_255_is_stretched_and_nan_is_dark():
    values = np.array([[0.0, 500.0, 1000.0, np.nan]], np.float32)
    assert np.asarray(to_rgb(Image.fromarray(values)))[0, :, 0].tolist() == [0, 128, 255, 0]


def test_a_palette_with_a_transparent_entry_is_composited_on_white():
    image = Image.new("P", (4, 4), 0)
    image.putpalette([10, 20, 30])
    assert pixels(encode(image, "PNG", transparency=0))[0, 0].tolist() == [255, 255, 255]
    assert pixels(encode(image, "PNG"))[0, 0].tolist() == [10, 20, 30]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation):
    upright = np.zeros((16, 32, 3), np.uint8)
    upright[:8, :16] = 255  # the upper left corner is white
    back = {2: 2, 3: 3, 4: 4, 5: 5, 6: 8, 7: 7, 8: 6}.get(orientation)
    exif = Image.Exif()
    exif[0x0112] = orientation
    image = Image.fromarray(upright)
    if back:
        image = image.transpose({2: 0, 3: 3, 4: 1, 5: 5, 6: 4, 7: 6, 8: 2}[back])
    for container in ("JPEG", "PNG", "WEBP", "TIFF"):
        found = pixels(encode(image, container, exif=exif))
        assert found.shape == upright.shape
        assert found[:8, :16].min() > 200
        assert found[8:, 16:].max() < 50


@pytest.mark.parametrize("container", ["GIF", "PNG", "WEBP", "AVIF"])
def test_frames_of_an_animation_are_sampled_at_a_uniform_step(container):
    # Each frame differs by much, or encoders merge it with the one before.
    images = [Image.new("RGB", (16, 16), (20 * number, 255 - 20 * number, 0)) for number in range(12)]
    data = encode(images[0], container, save_all=True, append_images=images[1:], duration=100)
    frames = list(image_frames(data, 4, LIMIT))
    assert [frame.index for frame in frames] == [1, 4, 7, 10]
    assert [frame.time_s for frame in frames] == pytest.approx([0.1, 0.4, 0.7, 1.0])
    assert all(abs(int(frame.pixels[8, 8, 0]) - 20 * frame.index) < 12 for frame in frames)


@pytest.mark.parametrize(("total", "most"), [(1, 8), (8, 8), (9, 8), (1000, 8), (7, 3), (5, 1)])
def test_sampled_frames_are_distinct_ordered_and_in_range(total, most):
    chosen = sample(total, most)
    assert len(chosen) == min(total, most)
    assert sorted(set(chosen)) == list(chosen)
    assert chosen[0] >= 0
    assert chosen[-1] < total


def looked_at(data):
    return extract(data, MediaPlan(crops=CropPlan(crop_px=8, patches=1, face_patches=0)), LIMIT)


@pytest.mark.parametrize("container", ["JPEG", "PNG", "TIFF"])
def test_a_cut_picture_is_judged_by_what_is_there_and_says_so(container):
    image = Image.effect_noise((200, 200), 80)
    whole = encode(image, container)
    (there,) = image_frames(whole, 8, LIMIT)
    for data in (whole[: len(whole) // 2], whole[: -2 if container == "JPEG" else -3000]):
        (frame,) = image_frames(data, 8, LIMIT)
        rows = len(frame.pixels) // 16 * 16 - 16
        assert rows >= 64
        assert np.array_equal(frame.pixels[:rows], there.pixels[:rows])
        assert looked_at(data).incomplete
    assert not looked_at(whole).incomplete
    assert rejected(whole[:300] if container == "JPEG" else whole[:60]) == "corrupt"


@pytest.mark.parametrize("container", ["GIF", "PNG", "WEBP"])
def test_an_animation_cut_at_its_end_is_judged_by_the_frames_before(container):
    images = [Image.effect_noise((64, 64), 20 + 10 * number) for number in range(12)]
    data = encode(images[0], container, save_all=True, append_images=images[1:], duration=100)
    assert not looked_at(data).incomplete
    for share in (0.3, 0.6, 0.95):
        decoded = looked_at(data[: int(len(data) * share)])
        assert decoded.incomplete
        assert decoded.others == 0
        assert max(decoded.frame_numbers) <= 12 * share


@pytest.mark.parametrize("container", ["mp4", "matroska", "avi"])
def test_a_film_cut_at_its_end_says_so(container):
    data = grey_clip(container)
    if container == "mp4":  # its index in front, as in what is sent over a network
        front, index = data[: data.index(b"moov") - 4], bytearray(data[data.index(b"moov") - 4 :])
        places = index.index(b"stco") + 12
        for at in range(places, places + 4 * int.from_bytes(index[places - 4 : places]), 4):
            index[at : at + 4] = (int.from_bytes(index[at : at + 4]) + len(index)).to_bytes(4)
        data = front[:36] + bytes(index) + front[36:]
    assert not looked_at(data).incomplete
    decoded = looked_at(data[: len(data) * 2 // 3])
    assert decoded.incomplete
    assert decoded.frames > 1


@pytest.mark.parametrize("container", ["WEBP", "AVIF"])
def test_a_cut_picture_that_cannot_be_read_is_called_cut(container):
    data = encode(Image.effect_noise((200, 200), 80), container)
    with pytest.raises(DecodeError, match="is cut") as error:
        looked_at(data[: len(data) // 2])
    assert error.value.reason == "corrupt"


def test_the_picture_that_stands_for_an_animated_png_is_among_its_frames():
    images = [Image.new("RGB", (16, 16), (20 * number, 0, 0)) for number in range(12)]
    hidden = encode(images[0], "PNG", save_all=True, append_images=images[1:], default_image=True)
    assert [frame.index for frame in image_frames(hidden, 4, LIMIT)] == [0, 4, 7, 10]
    avif = encode(images[0], "AVIF", save_all=True, append_images=images[1:])
    assert looked_at(avif).others == 0


def test_of_several_tracks_the_one_that_players_show_is_judged():
    buffer = BytesIO()
    with av.open(buffer, "w", format="mp4") as output:
        streams = [output.add_stream("mpeg4", rate=10) for _ in range(2)]
        for stream in streams:
            stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for grey, stream in zip((40, 200), streams, strict=True):
            picture = av.VideoFrame.from_ndarray(np.full((48, 64, 3), grey, np.uint8), "rgb24")
            output.mux([*stream.encode(picture), *stream.encode()])
    first, second = buffer.getvalue(), bytearray(buffer.getvalue())
    off = first.index(b"tkhd")
    on = first.index(b"tkhd", off + 4)
    second[off + 7], second[on + 7] = 2, 3  # which of the tracks is enabled
    for data, grey in ((first, 40), (bytes(second), 200)):
        decoded = looked_at(data)
        assert abs(int(decoded.crops[0, 4, 4, 0]) - grey) < 12
        assert decoded.others == 1


@pytest.mark.parametrize(("flips", "expected"), [((-1, 1), "lr"), ((1, -1), "ud"), ((-1, -1), "both")])
def test_a_mirrored_film_is_judged_as_it_is_shown(flips, expected):
    picture = np.zeros((48, 64, 3), np.uint8)
    picture[:24, :32] = 255
    buffer = BytesIO()
    with av.open(buffer, "w", format="mp4") as output:
        stream = output.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        output.mux(stream.encode(av.VideoFrame.from_ndarray(picture, "rgb24")))
        output.mux(stream.encode())
    data = bytearray(buffer.getvalue())
    matrix = data.index(b"tkhd") + 44
    data[matrix : matrix + 20] = struct.pack(">5i", flips[0] << 16, 0, 0, 0, flips[1] << 16)
    (frame,) = video_frames(bytes(data), 1, LIMIT)
    there = {"lr": picture[:, ::-1], "ud": picture[::-1], "both": picture[::-1, ::-1]}[expected]
    assert np.abs(frame.pixels.astype(int) - there).mean() < 12


def test_a_damaged_header_behind_a_known_signature_is_corrupt():
    assert rejected(b"\x89PNG\r\n\x1a\n" + bytes(40)) == "corrupt"


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (b"GET / HTTP/1.1\r\n", "text"),
        (b"%PDF-1.7\n%\xe2", "PDF"),
        (b"/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDAAgGBgcGBQgHBwcJ", "base64"),
        (b"<!DOCTYPE html><html>", "web page"),
        (b"<?xml version='1.0'?><svg xmlns=''>", "SVG"),
        (b'------x\r\nContent-Disposition: form-data; name="a"\r\n\r\n\xff\xd8', "form"),
        (b"data:image/png;base64,iVBO", "data URL"),
        (b"\0\0\x01\xba\x44\0\4", "MPEG"),
        ((b"G" + bytes(187)) * 3, "MPEG"),
        (b"ID3\4\0", "sound"),
        (b"PK\3\4\x14\0", "archive"),
        (b"\0\0\0\x18ftypcrx \0\0\0\1", "raw"),
        (b"II*\0\x08\0\0\0CR\2\0" + bytes(8), "raw"),
        (b"II*\0\x08\0\0\0\1\0\x12\xc6\1\0\4\0\0\0\1\4\0\0\0\0\0\0", "raw"),
        (b"\0\0\0\x0cjP  \r\n", "JPEG 2000"),
    ],
)
def test_what_is_not_judged_is_named_with_what_to_send(data, named):
    with pytest.raises(DecodeError, match=named) as error:
        looked_at(data)
    assert error.value.reason == "unknown_format"
    assert "send" in str(error.value) or "export" in str(error.value) or "not judged" in str(error.value)


def test_a_refusal_has_no_word_of_a_library():
    film = grey_clip("mp4", "mpeg4")
    for data in (film[: len(film) // 2], encode(Image.new("1", (3000, 2000)), "PNG")):
        with pytest.raises(DecodeError) as error:
            extract(data, MediaPlan(), LIMIT)
        assert not [word for word in ("Errno", "Error", "DOS") if word in str(error.value)]


@pytest.mark.parametrize(
    ("mode", "container", "limit"),
    [
        ("L", "PNG", 10_000),
        ("RGB", "PNG", 10_000),
        ("I;16", "PNG", 10_000),
        ("RGBA", "PNG", 13_334),
        ("LA", "PNG", 13_334),
        ("CMYK", "JPEG", 13_334),
        ("LAB", "TIFF", 13_334),
        ("I", "TIFF", 20_000),
        ("F", "TIFF", 20_000),
        ("P", "PNG", 13_334),  # with a transparent entry it counts as what it becomes
    ],
)
def test_the_pixel_limit_is_lower_for_pixels_of_more_bytes_and_holds_before_decoding(mode, container, limit):
    data = encode(Image.new(mode, (100, 100)), container, **{"transparency": 0} if mode == "P" else {})
    for beyond in (limit - 1, 4_000):
        assert rejected(data, beyond) == "too_many_pixels"
    assert len(list(image_frames(data, 8, limit))) == 1


@pytest.mark.parametrize(("pixels", "limit"), [("yuv444p", 64 * 48), ("gbrp16le", 2 * 64 * 48)])
def test_the_pixel_limit_is_lower_for_videos_of_deeper_pixels(pixels, limit):
    data = grey_clip("matroska", "ffv1", 1, pixels=pixels)
    with pytest.raises(DecodeError) as error:
        list(video_frames(data, 4, limit - 1))
    assert error.value.reason == "too_many_pixels"
    assert len(list(video_frames(data, 4, limit))) == 1


def test_a_float_picture_takes_little_more_memory_than_its_own_and_is_scaled_as_a_whole():
    values = np.random.default_rng(0).normal(0, 1000, (2000, 1000)).astype(np.float32)
    image = Image.fromarray(values)
    tracemalloc.start()
    try:
        grey = np.asarray(to_rgb(image))[..., 0]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # As float64 in one piece it were 24 bytes a pixel.
    assert peak < 14 * values.size
    real = values.astype(np.float64)
    low, high = real.min(), real.max()
    np.testing.assert_array_equal(grey, np.round((real - low) * (255 / (high - low))).astype(np.uint8))


def test_the_pixel_limit_holds_for_one_picture_and_not_for_whoever_uses_pillow_after_it():
    before = Image.MAX_IMAGE_PIXELS
    pixels(encode(Image.new("RGB", (40, 30)), "PNG"))
    assert rejected(b"GIF89a") == "corrupt"
    assert before == Image.MAX_IMAGE_PIXELS

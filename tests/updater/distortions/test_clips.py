"""Videos read and written: what is kept, and what is refused in one line."""

import struct

import av
import numpy as np
import pytest
from av.video.reformatter import ColorRange, Colorspace
from PIL import Image

from updater.distortions.clip import TAGS, Clip, ClipError, to_frame, to_rgb
from updater.distortions.clip_writing import STORED_AS, h264, write_clip

LIMIT = 10_000_000


def pictures(path):
    return np.stack([to_rgb(frame) for frame in Clip(path, LIMIT).frames()])


def luma(frame):
    return frame.to_ndarray()[: frame.height].astype(int)


def lumas(path):
    return np.stack([luma(frame) for frame in Clip(path, LIMIT).frames()])


def changing_size(path):
    """An AVI of JPEGs, the second half of which is larger."""
    coder = {}
    with av.open(str(path), "w", format="avi") as out:
        stream = out.add_stream("mjpeg", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 48, "yuvj420p"
        out.start_encoding()
        for number in range(6):
            side = (64, 48) if number < 3 else (80, 64)
            if side not in coder:
                coder[side] = av.CodecContext.create("mjpeg", "w")
                coder[side].width, coder[side].height = side
                coder[side].pix_fmt, coder[side].time_base = "yuvj420p", stream.codec_context.time_base
            frame = av.VideoFrame(*side, "yuvj420p")
            frame.pts = number
            for packet in coder[side].encode(frame):
                packet.stream = stream
                out.mux(packet)
    return path


def test_a_clip_is_read_whole_at_its_rate(write):
    clip = Clip(write("a.mp4"), LIMIT)
    assert clip.codec == "h264"
    assert clip.rate == 25
    assert sum(1 for _ in clip.frames()) == 10


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.mov"])
def test_a_time_base_of_milliseconds_is_a_constant_rate(write, name):
    assert Clip(write(name, 31, rate=30), LIMIT).rate == 30


@pytest.mark.parametrize("pixel_format", ["yuv420p", "yuv420p10le"])
@pytest.mark.parametrize("space", [Colorspace.ITU709, Colorspace.ITU601])
@pytest.mark.parametrize("extent", [ColorRange.JPEG, ColorRange.MPEG])
def test_colours_are_kept_by_the_rule_that_the_frame_names(scene, pixel_format, space, extent):
    first = av.VideoFrame.from_ndarray(scene(1, 64, 96)[0], "rgb24").reformat(
        format=pixel_format, dst_colorspace=space, dst_color_range=extent
    )
    again = to_frame(to_rgb(first), first)
    assert again.format.name == pixel_format
    assert (again.colorspace, again.color_range) == (first.colorspace, first.color_range)
    step = 4 if "10" in pixel_format else 1
    assert np.abs(luma(first) - luma(again)).max() <= 2 * step


def test_what_a_clip_says_of_its_colours_is_said_of_the_one_made_of_it(write, tmp_path):
    tags = {"colorspace": Colorspace.ITU709, "color_range": ColorRange.JPEG}
    clip = Clip(write("a.mp4", pixel_format="yuvj420p", **tags), LIMIT)
    write_clip(tmp_path / "b.mp4", "mp4", clip.frames(), clip, h264(23), sound=False)
    first, made = (next(iter(one.frames())) for one in (clip, Clip(tmp_path / "b.mp4", LIMIT)))
    for tag in TAGS:
        assert getattr(first, tag) == getattr(made, tag)
    assert made.format.name == "yuvj420p"


def test_there_and_back_takes_nothing_from_the_luma(write):
    first = next(iter(Clip(write("a.mp4"), LIMIT).frames()))
    before, after = luma(first), luma(to_frame(to_rgb(first), first))
    assert abs((before - after).mean()) < 0.2


def test_sound_is_copied_where_it_is_asked_for(write, tmp_path):
    clip = Clip(write("a.mp4", 50, sound=True), LIMIT)
    for sound in (True, False):
        target = tmp_path / "out.mp4"
        write_clip(target, "mp4", clip.frames(), clip, h264(30), sound=sound)
        with av.open(str(target)) as made, av.open(str(tmp_path / "a.mp4")) as given:
            assert len(made.streams.audio) == sound
            if sound:
                old, new = (
                    [bytes(packet) for packet in one.demux(one.streams.audio[0]) if packet.size]
                    for one in (given, made)
                )
                assert old == new
        assert len(pictures(target)) == 50


@pytest.mark.parametrize("quarters", [1, 2, 3])
def test_frames_are_turned_upright(write, quarters, tmp_path):
    path = write("a.mp4")
    flat = lumas(path)
    data = bytearray(path.read_bytes())
    # ISO/IEC 14496-12, the track header: its matrix of 16.16 begins 44 bytes behind its name.
    place = data.index(b"tkhd") + 44
    cosine, sine = [(0, -1), (-1, 0), (0, 1)][quarters - 1]
    data[place : place + 20] = struct.pack(">5i", cosine << 16, sine << 16, 0, -sine << 16, cosine << 16)
    path.write_bytes(data)
    assert (lumas(path) == np.rot90(flat, quarters, (1, 2))).all()


@pytest.mark.parametrize("codec", sorted(STORED_AS))
def test_each_codec_is_stored_again(write, codec, tmp_path):
    path = write("a.mkv", 8, (64, 96))
    clip = Clip(path, LIMIT)
    target = tmp_path / "again.mkv"
    write_clip(target, "matroska", clip.frames(), clip, STORED_AS[codec], sound=False)
    assert Clip(target, LIMIT).codec == codec
    assert np.abs(pictures(target).astype(int) - pictures(path)).mean() < 6


@pytest.mark.parametrize(("codec", "pixel_format"), [("png", "rgb24"), ("mjpeg", "yuvj420p")])
@pytest.mark.parametrize("coder", ["h264", "mpeg4"])
def test_frames_that_an_encoder_does_not_take_keep_their_colours(write, codec, pixel_format, coder, tmp_path):
    path = write("a.mov", 3, codec=codec, pixel_format=pixel_format)
    clip = Clip(path, LIMIT)
    target = tmp_path / "b.mkv"
    write_clip(target, "matroska", clip.frames(), clip, STORED_AS[coder], sound=False)
    away = pictures(target).astype(int) - pictures(path)
    assert np.abs(away.mean(axis=(0, 1, 2))).max() < 1.5
    assert np.abs(away).mean() < 6


def test_odd_sides_keep_their_size(write, tmp_path):
    clip = Clip(write("a.mkv", 3, (33, 47), codec="mpeg4"), LIMIT)
    target = tmp_path / "odd.mp4"
    write_clip(target, "mp4", clip.frames(), clip, h264(23), sound=False)
    assert pictures(target).shape == (3, 33, 47, 3)


def test_a_size_that_changes_is_told_with_its_frame(tmp_path):
    path = changing_size(tmp_path / "a.avi")
    told = "changes its size from 64 x 48 to 80 x 64 px at frame 3: cut it there"
    with pytest.raises(ClipError, match=told):
        list(Clip(path, LIMIT).frames())


def test_a_rate_that_varies_is_told(write):
    path = write("a.mp4", 6, times=[0, 1, 2, 6, 7, 8])
    told = r"frames 0\.160 s apart, and others 0\.040 s: bring it to a constant rate"
    with pytest.raises(ClipError, match=told):
        Clip(path, LIMIT)


def test_a_video_without_frames_is_told(write, tmp_path):
    path = tmp_path / "none.mp4"
    with av.open(str(path), "w") as out:
        heard = out.add_stream("aac", rate=16000, layout="mono")
        stream = out.add_stream("libx264", rate=25)
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        out.start_encoding()
        piece = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        piece.sample_rate, piece.pts = 16000, 0
        out.mux(heard.encode(piece))
        out.mux(heard.encode(None))
    with pytest.raises(ClipError, match=r"none\.mp4 holds no (frames|pictures)"):
        Clip(path, LIMIT)


def test_a_picture_is_no_video_and_a_large_one_is_too_large(write, tmp_path):
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    with pytest.raises(ClipError, match="is no video of MP4"):
        Clip(tmp_path / "a.png", LIMIT)
    with pytest.raises(ClipError, match=r"96 x 64 px; the limit is 100 in all"):
        Clip(write("a.mp4"), 100)


def test_damage_is_told(write):
    path = write("a.mp4", 40)
    path.write_bytes(path.read_bytes()[:900])
    with pytest.raises(ClipError, match=r"a\.mp4 cannot be read"):
        Clip(path, LIMIT)

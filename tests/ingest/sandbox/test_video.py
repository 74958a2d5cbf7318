"""Films: which frames are taken, and what gives none."""

from contextlib import suppress
from io import BytesIO
from pathlib import Path

import av
import numpy as np
import pytest
from media import grey_clip

from ingest.sandbox import video
from ingest.sandbox.containers import demuxer
from ingest.sandbox.decode import DecodeError
from ingest.sandbox.video import video_frames

LIMIT = 1_000_000


MEDIA = Path(__file__).parents[4] / "shared" / "media" / "video"
CONTAINERS = [
    ("mp4", "mpeg4", "mp4"),
    ("mov", "mpeg4", "mov"),
    ("matroska", "mpeg4", "matroska"),
    ("webm", "libvpx", "webm"),
    ("avi", "mpeg4", "avi"),
]


@pytest.mark.parametrize(("container", "codec", "name"), CONTAINERS)
@pytest.mark.parametrize("budget", [600_000_000, 64 * 48 * 35])
def test_frames_are_taken_at_a_uniform_step_also_through_key_frames(
    container, codec, name, budget, monkeypatch
):
    monkeypatch.setattr(video, "_MOST_DECODED_PIXELS", budget)
    frames = list(video_frames(grey_clip(container, codec), 4, LIMIT))
    assert [frame.index for frame in frames] == [5, 15, 25, 35]
    assert [frame.time_s for frame in frames] == pytest.approx([0.5, 1.5, 2.5, 3.5], abs=0.11)
    for frame in frames:
        assert frame.format == name
        assert abs(int(frame.pixels[24, 32, 1]) - (5 * frame.index + 20)) <= 6


def test_a_clip_beyond_the_budget_is_judged_by_its_key_frames(monkeypatch):
    monkeypatch.setattr(video, "_MOST_DECODED_PIXELS", 64 * 48 * 4)
    frames = list(video_frames(grey_clip("mp4", "mpeg4"), 8, LIMIT))
    assert [frame.index for frame in frames] == [0, 10, 20, 30]


def test_the_same_bytes_give_the_same_frames():
    data = grey_clip("mp4", "mpeg4")
    first, second = (list(video_frames(data, 4, LIMIT)) for _ in range(2))
    assert all(np.array_equal(a.pixels, b.pixels) for a, b in zip(first, second, strict=True))


def test_a_clip_cut_in_its_middle_gives_a_verdict_or_a_reason_but_no_other_error():
    for container, codec, _ in CONTAINERS:
        data = grey_clip(container, codec)
        with suppress(DecodeError):
            assert list(video_frames(data[: len(data) * 2 // 3], 4, LIMIT))


def test_frames_beyond_the_pixel_limit_are_refused():
    with pytest.raises(DecodeError) as error:
        list(video_frames(grey_clip("mp4", "mpeg4"), 4, 64 * 48 - 1))
    assert error.value.reason == "too_many_pixels"


@pytest.mark.parametrize(
    "data", [b"#EXTM3U\nhttp://127.0.0.1/x.ts", b"ffconcat version 1.0\nfile /etc/passwd", b""]
)
def test_playlists_are_no_videos(data):
    assert demuxer(data) is None
    with pytest.raises(DecodeError):
        list(video_frames(data, 4, LIMIT))


def test_an_mp4_that_only_has_sound_has_no_picture():
    buffer = BytesIO()
    with av.open(buffer, "w", format="mp4") as output:
        stream = output.add_stream("aac", rate=48_000)
        sound = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
        sound.sample_rate = 48_000
        output.mux(stream.encode(sound))
        output.mux(stream.encode())
    with pytest.raises(DecodeError) as error:
        list(video_frames(buffer.getvalue(), 4, LIMIT))
    assert error.value.reason == "unknown_format"


@pytest.mark.parametrize(("tag", "quarter_turns"), [(0, 0), (90, 3), (180, 2), (270, 1)])
def test_rotation_metadata_is_applied(tag, quarter_turns):
    file = MEDIA / f"decord__tests__test_data__video_{tag}.mov"
    if not file.exists():
        pytest.skip("the shared media are not here")
    with av.open(BytesIO(file.read_bytes())) as container:
        stored = next(container.decode(video=0)).to_ndarray(format="rgb24")
    shown = next(iter(video_frames(file.read_bytes(), 9, LIMIT))).pixels
    assert np.array_equal(shown, np.rot90(stored, quarter_turns))

"""Films: which frames are taken, and what gives none."""

import threading
from contextlib import suppress
from functools import partial
from io import BytesIO
from pathlib import Path

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from media import encode, grey_clip
from PIL import Image
from prometheus_client import REGISTRY
from pydantic import ValidationError

from ingest.records import CropPlan, MediaPlan, PicturePlan, Place, PlacesPlan
from ingest.sandbox import video
from ingest.sandbox.containers import demuxer
from ingest.sandbox.crops import cut, enlarge, face_grid, grid
from ingest.sandbox.decode import DecodeError
from ingest.sandbox.extract import extract, resize
from ingest.sandbox.sandbox import Sandbox
from ingest.sandbox.video import video_frames
from ingest.settings import IngestSettings

LIMIT = 1_000_000

MEDIA = Path(__file__).parents[4] / "shared" / "media" / "video"
CONTAINERS = {"mp4": "mpeg4", "mov": "mpeg4", "matroska": "mpeg4", "webm": "libvpx", "avi": "mpeg4"}


@pytest.mark.parametrize(("container", "codec"), CONTAINERS.items())
@pytest.mark.parametrize("budget", [600_000_000, 64 * 48 * 35])
def test_frames_are_taken_at_a_uniform_step_through_key_frames(container, codec, budget, monkeypatch):
    monkeypatch.setattr(video, "_MOST_DECODED_PIXELS", budget)
    frames = list(video_frames(grey_clip(container, codec), 4, LIMIT))
    assert [frame.index for frame in frames] == [5, 15, 25, 35]
    assert [frame.time_s for frame in frames] == pytest.approx([0.5, 1.5, 2.5, 3.5], abs=0.11)
    for frame in frames:
        assert frame.format == container
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
    for container, codec in CONTAINERS.items():
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


sides = st.integers(1, 900)


def test_a_256_px_square_gives_the_four_quarters():
    assert grid(256, 256, 128, 4) == ((0, 0), (128, 0), (0, 128), (128, 128))


def test_a_wide_picture_gets_a_wide_grid():
    corners = grid(1600, 800, 128, 8)
    assert len({left for left, _ in corners}) == 4
    assert len({top for _, top in corners}) == 2


@given(sides, sides, st.sampled_from([64, 128]), st.integers(1, 12))
def test_patches_are_within_the_picture_on_the_jpeg_grid_and_no_two_the_same(width, height, crop_px, patches):
    corners = grid(width, height, crop_px, patches)
    assert 1 <= len(corners) <= patches
    assert len(set(corners)) == len(corners)
    for left, top in corners:
        assert left % 8 == top % 8 == 0
        assert 0 <= left <= max(width - crop_px, 0)
        assert 0 <= top <= max(height - crop_px, 0)


@given(st.integers(1, 300), st.integers(1, 300), st.integers(1, 9))
def test_crops_are_native_pixels_and_small_pictures_are_mirrored(width, height, patches):
    picture = np.random.default_rng(width * 1000 + height).integers(0, 256, (height, width, 3), np.uint8)
    corners = grid(width, height, 128, patches)
    crops = cut(picture, corners, 128)
    assert crops.shape == (len(corners), 128, 128, 3)
    for crop, (left, top) in zip(crops, corners, strict=True):
        native = picture[top : top + 128, left : left + 128]
        assert np.array_equal(crop[: native.shape[0], : native.shape[1]], native)
    if width == 2 and height >= 128:
        assert np.array_equal(crops[0][:, 2], crops[0][:, 0])


def test_a_single_pixel_fills_its_crop():
    crops = cut(np.full((1, 1, 3), 7, np.uint8), grid(1, 1, 128, 9), 128)
    assert crops.shape == (1, 128, 128, 3)
    assert np.all(crops == 7)


def test_a_large_plan_is_covered_whole_when_it_may_be():
    seen = np.zeros((300, 340), bool)
    for left, top in grid(340, 300, 128, 9):
        seen[top : top + 128, left : left + 128] = True
    assert seen[:296, :336].all()


@pytest.mark.parametrize("face", [(0, 0, 40, 40), (180, 10, 70, 70), (20, 100, 200, 150), (250, 250, 5, 5)])
def test_a_face_is_cut_from_the_picture_around_it(face):
    box = enlarge(face, 256, 256)
    corners = face_grid(box, 256, 256, 128, 4)
    assert all(0 <= left <= 128 and 0 <= top <= 128 and left % 8 == top % 8 == 0 for left, top in corners)
    middle = face[0] + face[2] / 2, face[1] + face[3] / 2
    assert any(left <= middle[0] < left + 128 and top <= middle[1] < top + 128 for left, top in corners)


def test_a_face_is_enlarged_by_three_tenths_and_kept_inside():
    assert enlarge((100, 100, 100, 100), 400, 400) == (85, 85, 130, 130)
    assert enlarge((0, 0, 100, 100), 90, 400) == (0, 0, 90, 115)


def test_a_smaller_stride_lets_patches_overlap():
    assert len(grid(240, 240, 128, 9, 64)) == 9
    assert grid(240, 240, 128, 9, 64)[:3] == ((0, 0), (56, 0), (112, 0))
    assert len(grid(240, 240, 128, 4, 64)) == 4


def test_a_picture_is_resized_as_its_plan_says():
    edge = np.zeros((16, 16, 3), np.uint8)
    edge[:, 8:] = 200
    made = {
        how: resize(edge, PicturePlan.model_validate({"width_px": 32, "height_px": 8, "interpolation": how}))
        for how in ("bilinear", "bicubic", "lanczos")
    }
    assert all(one.shape == (8, 32, 3) for one in made.values())
    assert made["bilinear"].max() == 200
    assert made["bicubic"].max() > 200, "a cubic overshoots at an edge"
    assert not np.array_equal(made["bicubic"], made["lanczos"])
    assert PicturePlan(width_px=32, height_px=8).interpolation == "bilinear"


# A second look: crops at named places of named frames, and nothing else.
PIXELS = np.random.default_rng(0).integers(0, 256, (90, 120, 3), np.uint8)


def still(pixels=PIXELS):
    return encode(Image.fromarray(pixels), "PNG")


def animation(count):
    """Frame n is of the grey n."""
    frames = [Image.fromarray(np.full((40, 40, 3), number, np.uint8)) for number in range(count)]
    return encode(frames[0], "PNG", save_all=True, append_images=frames[1:], duration=100)


def shows(decoded):
    greys = [round((float(crop[8:24, 8:24].mean()) - 20) / 5) for crop in decoded.crops]
    return [(region.frame, grey) for region, grey in zip(decoded.regions, greys, strict=True)]


@given(st.lists(st.tuples(st.integers(0, 56), st.integers(0, 26)), min_size=1, max_size=8))
def test_a_crop_is_the_pictures_own_pixels_at_its_place(corners):
    plan = PlacesPlan(crop_px=64, places=tuple(Place(0, *corner) for corner in corners))
    decoded = extract(still(), plan, LIMIT)
    assert (decoded.width, decoded.height, decoded.length) == (120, 90, 1)
    for row, (left, top) in enumerate(corners):
        region = decoded.regions[row]
        assert (region.box, region.crops, region.time_s) == ((left, top, 64, 64), (row,), None)
        np.testing.assert_array_equal(decoded.crops[row], PIXELS[top : top + 64, left : left + 64])


def test_a_place_beyond_the_picture_is_moved_inside_and_a_small_picture_is_mirrored():
    plan = PlacesPlan(crop_px=100, places=(Place(0, 500, 7),))
    decoded = extract(still(), plan, LIMIT)
    assert decoded.regions[0].box == (20, 0, 100, 90)
    np.testing.assert_array_equal(decoded.crops[0, :90], PIXELS[:, 20:])
    np.testing.assert_array_equal(decoded.crops[0, 90:], PIXELS[79:89, 20:][::-1])


def test_an_animation_shows_the_frames_that_are_named():
    plan = PlacesPlan(crop_px=8, places=(Place(7, 0, 0), Place(2, 8, 8), Place(2, 0, 0)))
    decoded = extract(animation(9), plan, LIMIT)
    assert decoded.crops[:, 0, 0, 0].tolist() == [2, 2, 7]
    assert [(region.frame, region.time_s) for region in decoded.regions] == [(2, 0.2), (2, 0.2), (7, 0.7)]
    assert (decoded.frames, decoded.frame_numbers, decoded.length) == (2, (2, 7), 9)


def test_the_first_look_is_the_same_at_frames_that_are_named_for_it():
    crops = CropPlan(crop_px=16, patches=2, face_patches=0, frames=4)
    shown = {"whole": PicturePlan(width_px=8, height_px=8)}
    sampled = extract(grey_clip(), MediaPlan(crops=crops, pictures=shown), LIMIT)
    assert sampled.frame_numbers == (5, 15, 25, 35)
    named = extract(grey_clip(), MediaPlan(crops=crops, pictures=shown, frames=(15, 16, 25)), LIMIT)
    assert (named.frame_numbers, named.length) == ((15, 16, 25), 40)
    assert [region.frame for region in named.regions] == [15, 16, 25]
    for view in ("crops", "whole"):
        # Of each frame there are as many rows in both.
        rows = len(sampled.view(view)) // 4
        np.testing.assert_array_equal(named.view(view)[:rows], sampled.view(view)[rows : 2 * rows])
        np.testing.assert_array_equal(named.view(view)[-rows:], sampled.view(view)[2 * rows : 3 * rows])


def test_no_more_frames_can_be_named_than_the_crops_are_of():
    with pytest.raises(ValidationError, match="3 frames are more than the crops' 2"):
        MediaPlan(crops=CropPlan(frames=2), frames=(0, 1, 2))
    with pytest.raises(ValidationError):
        MediaPlan(frames=())


def test_a_video_shows_the_frames_that_are_named():
    plan = PlacesPlan(crop_px=32, places=tuple(Place(number, number, 0) for number in (3, 4, 21, 39)))
    decoded = extract(grey_clip(), plan, LIMIT)
    assert shows(decoded) == [(3, 3), (4, 4), (21, 21), (39, 39)]
    assert [region.box[0] for region in decoded.regions] == [3, 4, 21, 32]
    assert [region.time_s for region in decoded.regions] == pytest.approx([0.3, 0.4, 2.1, 3.9], abs=0.11)
    assert (decoded.kind, decoded.frames, decoded.length) == ("video", 4, 40)


def test_where_frames_cannot_be_reached_their_key_frames_stand_for_them_once(monkeypatch):
    monkeypatch.setattr(video, "_MOST_DECODED_PIXELS", 64 * 48 * 4)
    plan = PlacesPlan(crop_px=32, places=tuple(Place(number, 0, 0) for number in (12, 19, 31)))
    decoded = extract(grey_clip(), plan, LIMIT)
    assert shows(decoded) == [(10, 10), (30, 30)]


@pytest.mark.parametrize(
    ("most", "frames"),
    [(40, (1, 8, 12, 19, 31)), (12, (1, 3, 12, 13, 31)), (4, (0, 10, 30)), (2, (0, 30)), (1, (10,))],
)
def test_of_so_many_frames_that_may_be_decoded_those_behind_key_frames_stand_for_the_named_ones(most, frames):
    places = tuple(Place(number, 0, 0) for number in (1, 8, 12, 19, 31))
    plan = PlacesPlan(crop_px=32, places=places, most_decoded=most)
    assert shows(extract(grey_clip(), plan, LIMIT)) == [(number, number) for number in frames]


def test_of_an_animation_the_frames_behind_those_that_may_be_decoded_are_left_out():
    places = (Place(2, 0, 0), Place(4, 0, 0), Place(7, 0, 0))
    decoded = extract(animation(9), PlacesPlan(crop_px=8, places=places, most_decoded=5), LIMIT)
    assert (decoded.frame_numbers, decoded.length) == ((2, 4), 9)


@pytest.mark.parametrize("data", [animation(9), grey_clip()], ids=["animation", "video"])
def test_what_a_frame_took_is_of_all_that_were_decoded(monkeypatch, data):
    clock = iter(range(1000))
    monkeypatch.setattr("ingest.sandbox.extract.time.process_time", lambda: next(clock))
    length = extract(data, MediaPlan(), LIMIT).length
    crops = CropPlan(crop_px=8, patches=1, face_patches=0, frames=2)
    decoded = extract(data, MediaPlan(crops=crops), LIMIT)
    last = decoded.frame_numbers[-1]
    assert last < length - 1
    # Two frames and the end, a second each by this clock.
    assert decoded.frame_s == pytest.approx(3 / (last + 1))


def test_the_last_frame_stands_for_those_beyond_the_end():
    decoded = extract(grey_clip(), PlacesPlan(crop_px=32, places=(Place(5, 0, 0), Place(900, 0, 0))), LIMIT)
    assert shows(decoded) == [(5, 5), (39, 39)]


def test_what_is_no_media_is_refused():
    with pytest.raises(DecodeError) as error:
        extract(b"no media", PlacesPlan(places=(Place(0, 0, 0),)), LIMIT)
    assert error.value.reason == "unknown_format"


@pytest.mark.parametrize("places", [(), ((0, 0, 0),) * 257])
def test_a_plan_names_some_places_and_not_more_than_a_request_takes(places):
    with pytest.raises(ValidationError):
        PlacesPlan(places=places)


@pytest.fixture(scope="module")
def sandbox():
    with Sandbox(IngestSettings(decode_processes=1)) as box:
        yield box


@pytest.mark.parametrize("data", [still(), animation(9), grey_clip()])
def test_the_sandbox_gives_what_cutting_in_this_process_gives(sandbox, data):
    plan = PlacesPlan(crop_px=16, places=(Place(0, 3, 4), Place(6, 8, 0), Place(8, 0, 8)))
    here, there = extract(data, plan, LIMIT), sandbox.submit(data, plan).result()
    np.testing.assert_array_equal(there.crops, here.crops)
    assert there == here


@pytest.mark.slow
def test_a_second_look_does_not_wait_for_the_first_looks_that_were_queued_before_it():
    begun, go_on, order = threading.Event(), threading.Event(), []

    def media(name):
        order.append(name)
        if name == "busy":
            begun.set()
            assert go_on.wait(60)
        return still()

    second = PlacesPlan(crop_px=16, places=(Place(0, 0, 0),))
    with Sandbox(IngestSettings(decode_processes=1)) as box:
        looks = [box.submit(partial(media, "busy"), MediaPlan())]
        assert begun.wait(60)
        looks += [box.submit(partial(media, name), MediaPlan()) for name in ("first", "next")]
        looks += [box.submit(partial(media, name), second) for name in ("again", "and again")]
        go_on.set()
        for look in looks:
            look.result()
    assert order == ["busy", "again", "and again", "first", "next"]


def test_what_is_decoded_again_is_timed_apart_from_what_a_verdict_waits_for(sandbox):
    def decoded(name):
        return REGISTRY.get_sample_value(f"forgewatch_ingest_{name}_seconds_count") or 0.0

    first, again = decoded("decode"), decoded("decode_again")
    for plan in (MediaPlan(), PlacesPlan(crop_px=16, places=(Place(0, 0, 0),)), MediaPlan()):
        sandbox.submit(still(), plan).result()
    assert (decoded("decode") - first, decoded("decode_again") - again) == (2, 1)


def test_the_first_look_tells_how_long_a_clip_is(sandbox):
    assert sandbox.submit(grey_clip(), MediaPlan()).result().length == 40

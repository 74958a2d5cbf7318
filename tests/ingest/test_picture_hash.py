import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pictures import drawn, hashes_of
from PIL import Image, ImageOps

from ingest.picture_hash import HASH_BYTES, PICTURE_BYTES, mirror_hashes, picture_hashes
from ingest.records import CropPlan, MediaPlan, Place, PlacesPlan
from ingest.sandbox.extract import extract

seeds = st.integers(0, 2**32 - 1)


def codes(hashes: bytes) -> np.ndarray:
    return np.frombuffer(hashes, np.uint8).reshape(-1, HASH_BYTES)


def bits(a: np.ndarray, b: np.ndarray) -> int:
    return int(np.bitwise_count(a ^ b).sum())


@settings(max_examples=30, deadline=None)
@given(seeds, st.integers(33, 400), st.integers(33, 400))
def test_the_hash_of_the_mirrored_picture_is_the_mirrored_hash(seed, width, height):
    picture = drawn(seed, width, height)
    own, other = codes(hashes_of(picture)), codes(hashes_of(ImageOps.mirror(picture)))
    np.testing.assert_array_equal(mirror_hashes(mirror_hashes(own)), own)
    assert bits(mirror_hashes(own)[0], other[0]) <= 8
    assert bits(own[0], other[0]) > 64


@settings(max_examples=30, deadline=None)
@given(seeds, st.integers(600, 1500), st.integers(600, 1500))
def test_a_large_picture_has_the_hash_of_its_small_copy(seed, width, height):
    picture = drawn(seed, width, height)
    small = picture.resize((width // 4, height // 4), Image.Resampling.LANCZOS)
    assert bits(codes(hashes_of(picture))[0], codes(hashes_of(small))[0]) <= 16


@pytest.mark.parametrize("noise", [0, 2])
@pytest.mark.parametrize("slope", [(0, 0), (200, 0), (0, 200), (100, 100)])
def test_flat_pictures_and_gradients_have_no_hash(slope, noise):
    down, across = np.mgrid[0:1:200j, 0:1:300j]
    grey = 20 + slope[0] * down + slope[1] * across
    grey = grey + np.random.default_rng(0).normal(0, noise, grey.shape) if noise else grey
    assert hashes_of(Image.fromarray(grey.round().astype(np.uint8)).convert("RGB")) == b""


@pytest.mark.parametrize("size", [(1, 1), (1, 5000), (5000, 1), (3, 2)])
def test_pictures_of_any_size_are_hashed_or_found_flat(size):
    rng = np.random.default_rng(0)
    hashes = picture_hashes(rng.integers(0, 256, (*size, 3), np.uint8))
    assert len(hashes) in (0, PICTURE_BYTES)


def png(picture: Image.Image, **options) -> bytes:
    import io

    file = io.BytesIO()
    picture.save(file, "PNG", **options)
    return file.getvalue()


def test_each_frame_that_is_not_flat_is_hashed_in_its_order_and_only_at_the_first_look():
    frames = [drawn(1), Image.new("RGB", (240, 200)), drawn(2)]
    media = png(frames[0], save_all=True, append_images=frames[1:], duration=100)
    decoded = extract(media, MediaPlan(crops=CropPlan(crop_px=32)), 10**6)
    assert decoded.frames == 3
    assert decoded.picture_hashes == hashes_of(frames[0]) + hashes_of(frames[2])
    again = PlacesPlan(crop_px=32, places=(Place(0, 0, 0),)), MediaPlan(frames=(0, 2))
    assert [extract(media, plan, 10**6).picture_hashes for plan in again] == [b"", b""]

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingest.records import PicturePlan
from ingest.sandbox.crops import cut, enlarge, face_grid, grid
from ingest.sandbox.extract import resize

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
    picture = np.random.default_rng(width * 1000 + height).integers(
        0, 256, (height, width, 3), dtype=np.uint8
    )
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

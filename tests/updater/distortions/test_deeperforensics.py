"""The seven, against the published values and against the library that the published code calls."""

import numpy as np
import pytest

from updater.distortions import deeperforensics
from updater.distortions.deeperforensics import (
    BLUR_TAPS,
    CONTRAST_FACTORS,
    JPEG_FACTORS,
    NOISE_VARIANCES,
    SATURATION_FACTORS,
    add_noise,
    block_wise,
    color_contrast,
    color_saturation,
    cover,
    gaussian_blur,
    gaussian_noise_color,
    jpeg_compression,
    to_rgb,
    to_ycbcr,
)
from updater.distortions.distortion import LEVELS

NOTHING = np.random.default_rng(0)
PIXEL = np.array([[[[200, 100, 50]]]], np.uint8)


def picture(height=120, width=160):
    """A picture of edges, ramps and noise, uint8 RGB [1, H, W, 3]."""
    rng = np.random.default_rng(5)
    blocks = rng.integers(0, 256, (1, -(-height // 8), -(-width // 8), 3)).repeat(8, 1).repeat(8, 2)
    grain = rng.normal(0, 6, (1, height, width, 3))
    return np.clip(blocks[:, :height, :width] + grain, 0, 255).astype(np.uint8)


CS = [(154, 114, 94), (146, 116, 101), (139, 119, 109), (131, 121, 116), (124, 124, 124)]
CC = [(170, 85, 42), (145, 72, 36), (120, 60, 30), (95, 47, 23), (70, 35, 17)]
GNC = [(209, 109, 59), (213, 113, 63), (221, 121, 70), (229, 129, 79), (255, 166, 116)]
GB = [30, 18, 9, 5, 4]


@pytest.mark.parametrize(("level", "rgb"), [*enumerate(CS, 1)])
def test_cs_gives_the_published_values(level, rgb):
    assert color_saturation(NOTHING, PIXEL, level).ravel().tolist() == [*rgb]


@pytest.mark.parametrize(("level", "rgb"), [*enumerate(CC, 1)])
def test_cc_gives_the_published_values(level, rgb):
    assert color_contrast(NOTHING, PIXEL, level).ravel().tolist() == [*rgb]


@pytest.mark.parametrize(("level", "rgb"), [*enumerate(GNC, 1)])
def test_gnc_gives_the_published_values_for_a_given_noise(level, rgb):
    assert add_noise(PIXEL[0], np.array([[[1, 0, 0]]], np.float32), level).ravel().tolist() == [*rgb]


@pytest.mark.parametrize(("level", "middle"), [*enumerate(GB, 1)])
def test_gb_gives_the_published_middle_of_a_point(level, middle):
    point = np.zeros((1, 41, 41, 3), np.uint8)
    point[0, 20, 20] = 255
    assert gaussian_blur(NOTHING, point, level)[0, 20, 20].tolist() == [middle] * 3


def test_jpeg_gives_the_published_row():
    row = np.array([*range(0, 120, 10), *[0] * 12], np.uint8)
    found = jpeg_compression(NOTHING, np.tile(row[None, None, :, None], (1, 24, 1, 3)), 2)[0, ..., 0]
    assert found[0].tolist() == [10, *range(10, 110, 10), 66, 33, *[0] * 11]
    # Between two rows one of the three parts is not cut.
    assert found[1].tolist() == [10, *range(10, 110, 10), 67, 33, *[0] * 11]


@pytest.mark.parametrize(
    ("side", "level", "blocks"), [(255, 5, 0), (256, 1, 16), (511, 2, 32), (512, 1, 32), (600, 5, 160)]
)
def test_bw_lays_so_many_blocks_for_each_256_pixels_of_the_shorter_side(side, level, blocks, monkeypatch):
    laid = []
    monkeypatch.setattr(deeperforensics, "cover", lambda frame, corners: laid.append(np.array(corners)))
    block_wise(np.random.default_rng(1), np.zeros((2, side, 700, 3), np.uint8), level)
    first, second = laid
    assert len(first) == len(second) == blocks
    if blocks:
        assert first.tolist() != second.tolist()
        assert first.min() >= 0
        assert (first <= (side - 9, 700 - 9)).all()


def test_bw_covers_squares_of_grey():
    frame = np.zeros((256, 300, 3), np.uint8)
    cover(frame, np.array([[10, 20], [248, 292]]))
    assert (frame[10:18, 20:28] == 128).all()
    assert (frame[248:, 292:] == 128).all()
    assert (frame == 128).sum() == 2 * 64 * 3


def test_gnc_draws_white_noise_of_its_strength():
    grey = np.full((2, 100, 100, 3), 128, np.uint8)
    noisy = gaussian_noise_color(np.random.default_rng(2), grey, 1).astype(int) - 128
    assert 11 < noisy.std(axis=(0, 1, 2)).min() < noisy.std(axis=(0, 1, 2)).max() < 19
    assert abs(noisy.mean()) < 1
    assert (noisy[0] != noisy[1]).any()


def test_there_and_back_changes_no_colour():
    # The two ways are rounded to three digits, and so no exact inverses.
    assert np.abs(to_rgb(to_ycbcr(picture())) - picture()).max() < 0.2


@pytest.mark.parametrize("level", LEVELS)
def test_as_opencv_computes_it(level):
    cv2 = pytest.importorskip("cv2")
    ours = picture()
    bgr = np.ascontiguousarray(ours[0, ..., ::-1])

    def away(function, expected):
        return np.abs(function(NOTHING, ours, level)[0, ..., ::-1].astype(int) - expected)

    taps, factor = BLUR_TAPS[level - 1], JPEG_FACTORS[level - 1]
    assert away(gaussian_blur, cv2.GaussianBlur(bgr, (taps, taps), taps / 6)).max() == 0
    small = cv2.resize(bgr, (160 // factor, 120 // factor))
    assert away(jpeg_compression, cv2.resize(small, (160, 120))).max() == 0
    darker = (bgr.astype(np.float32) * CONTRAST_FACTORS[level - 1]).astype(np.uint8)
    assert away(color_contrast, darker).max() == 0

    def turned(change):
        planes = cv2.cvtColor(bgr.astype(np.float32), cv2.COLOR_BGR2YCR_CB)
        sizes = np.array([219, 224, 224], np.float32)
        planes = change((planes * sizes + np.float32(16)) / np.float32(255))
        planes = (planes * np.float32(255) - np.float32(16)) / sizes
        return np.clip(cv2.cvtColor(planes, cv2.COLOR_YCR_CB2BGR), 0, 255).astype(np.uint8)

    def faded(planes):
        half = np.float32(0.5)
        chroma = half + (planes[..., 1:] - half) * np.float32(SATURATION_FACTORS[level - 1])
        return np.concatenate([planes[..., :1], chroma], -1)

    assert away(color_saturation, turned(faded)).max() == 0
    noise = np.random.default_rng(3).standard_normal(bgr.shape, dtype=np.float32)
    strength = np.float32(np.sqrt(NOISE_VARIANCES[level - 1]))
    scale = np.float32(255)
    # Their planes are Y, Cr, Cb
    expected = turned(lambda planes: (planes / scale + strength * noise[..., (0, 2, 1)]) * scale)
    assert np.abs(add_noise(ours[0], noise, level)[..., ::-1].astype(int) - expected).max() <= 1

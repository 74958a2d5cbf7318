"""What a distortion of a picture leaves on its crops."""

import numpy as np
import pytest

from updater.distortions.apply import distort
from updater.distortions.crops import distort_crops
from updater.distortions.deeperforensics import block_wise
from updater.distortions.distortion import Step
from updater.distortions.methods import DEEPERFORENSICS

CALM = ("CS", "CC", "GB", "JPEG")


@pytest.fixture(scope="module")
def crops():
    """Three crops of 64 px with edges, no two alike."""
    rng = np.random.default_rng(0)
    return rng.integers(20, 236, (3, 8, 8, 3)).repeat(8, 1).repeat(8, 2).astype(np.uint8)


def rng():
    return np.random.default_rng(5)


@pytest.mark.parametrize("name", DEEPERFORENSICS)
def test_every_distortion_changes_every_crop_by_the_seed_alone_and_keeps_what_it_was_given(crops, name):
    before = crops.copy()
    once, again = (distort_crops(rng(), crops, [Step(name, 3)]) for _ in range(2))
    assert once.shape == crops.shape
    assert once.dtype == np.uint8
    assert (once == again).all()
    assert (crops == before).all()
    assert [bool((new != old).any()) for new, old in zip(once, crops, strict=True)] == [True] * 3


@pytest.mark.parametrize("name", CALM)
def test_what_draws_nothing_is_what_it_is_on_a_picture_of_that_size(crops, name):
    one = crops[:1]
    assert (distort_crops(rng(), one, [Step(name, 4)]) == distort(rng(), one, [Step(name, 4)])).all()


def test_video_compression_codes_each_crop_alone_whatever_is_beside_it(crops):
    together = distort_crops(rng(), crops, [Step("VC", 3)])
    alone = np.concatenate([distort_crops(rng(), crop[None], [Step("VC", 3)]) for crop in crops])
    assert (together == alone).all()
    # As one clip, later frames are predicted from earlier ones.
    assert (distort(rng(), crops, [Step("VC", 3)]) != together).any()


@pytest.mark.parametrize("level", [1, 5])
def test_blocks_lie_on_crops_as_densely_as_on_a_picture_of_256_px(level):
    crops = np.zeros((200, 64, 64, 3), np.uint8)
    grey = (distort_crops(rng(), crops, [Step("BW", level)]) == block_wise.GREY).mean()
    whole = (block_wise.apply(rng(), np.zeros((20, 256, 256, 3), np.uint8), level) == block_wise.GREY).mean()
    assert grey == pytest.approx(whole, rel=0.15)
    assert not (block_wise.apply(rng(), crops, level) == block_wise.GREY).any()


def test_a_mix_applies_its_steps_in_order(crops):
    steps = [Step("GNC", 5), Step("CC", 5)]
    forth, back = distort_crops(rng(), crops, steps), distort_crops(rng(), crops, steps[::-1])
    assert forth.max() <= 255 * 0.35  # darkened last
    assert back.max() > 255 * 0.35

"""Every distortion keeps what all promise: shape, seed, levels, one draw a clip, maps that move along."""

import inspect
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from updater.distortions import capture, colour, compression, deeperforensics, transmission
from updater.distortions.deeperforensics import DEEPERFORENSICS, GREY, block_wise
from updater.distortions.distortion import LEVELS, DistortionError, Step
from updater.distortions.methods import (
    AUGMENTATIONS,
    DISTORTIONS,
    FORGERYNET,
    MIXED,
    distort,
    distort_crops,
    distort_with_maps,
    draw_steps,
    drawn_by_the_law_of_files,
    seeds_of,
    step,
)

MODULES = (deeperforensics, compression, transmission, capture, colour)
MOVED = [name for name, distortion in DISTORTIONS.items() if distortion.move]
CALM = ("CS", "CC", "GB", "JPEG")


@pytest.fixture(scope="module")
def clip():
    """Three frames of 264 × 272 with edges and ramps, alike."""
    blocks = np.random.default_rng(0).integers(20, 236, (11, 17, 3)).repeat(24, 0).repeat(16, 1).astype(float)
    ramp = np.linspace(-20, 20, 272)[None, :, None]
    return np.clip(blocks + ramp, 0, 255).astype(np.uint8)[None].repeat(3, 0)


def applied(name, frames, level, seed=0):
    return DISTORTIONS[name].apply(np.random.default_rng(seed), frames, level)


def test_there_are_seven_and_thirty_six():
    assert len(DEEPERFORENSICS) == 7
    ours = (compression.COMPRESSION, transmission.TRANSMISSION, capture.CAPTURE, colour.COLOUR)
    assert [len(group) for group in ours] == [7, 6, 13, 10]
    assert len(FORGERYNET) == 36
    assert len(DISTORTIONS) == 43


@pytest.mark.parametrize("module", MODULES)
def test_each_function_of_a_group_is_one_distortion_with_a_line(module):
    group = module.__name__.rpartition(".")[2]
    table = getattr(module, group.upper())
    functions = {
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and [*inspect.signature(value).parameters][::2] == ["rng", "level"]
        and not name.startswith("_")
    }
    applied_functions = {distortion.apply.__name__ for distortion in table.values()}
    assert functions - {"aberration_maps"} == applied_functions
    assert group == "deeperforensics" or applied_functions == set(table)


def test_the_augmentations_are_sets_of_ours():
    assert AUGMENTATIONS["weak"] == ()
    assert set(AUGMENTATIONS["normal"]) < set(AUGMENTATIONS["enhanced"]) == set(FORGERYNET)


@pytest.mark.parametrize("name", DISTORTIONS)
def test_a_distortion_changes_a_copy_and_repeats_itself(name, clip):
    given = clip.copy()
    once = applied(name, given, 2)
    assert (given == clip).all()
    assert once.dtype == np.uint8
    assert once.shape == clip.shape
    assert (once != clip).any()
    assert (applied(name, given, 2) == once).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", [of for of in DISTORTIONS if of not in ("channel_shuffle", "saturation")])
def test_the_highest_level_is_farther_from_the_original_than_the_lowest(name, clip):
    def away(level):
        moved = [applied(name, clip[:1], level, seed) - clip[:1].astype(float) for seed in range(3)]
        return np.square(moved).mean()

    assert away(5) > 1.1 * away(1)


@pytest.mark.parametrize("name", [name for name in DISTORTIONS if not DISTORTIONS[name].rate_factors])
def test_frames_share_a_draw_unless_each_has_its_own(name, clip):
    first, second, third = applied(name, clip, 5)
    assert ((first == second).all() and (second == third).all()) != DISTORTIONS[name].each_frame


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in DISTORTIONS if not DISTORTIONS[name].rate_factors])
def test_a_clip_in_pieces_is_distorted_as_at_once(name, clip):
    rng = np.random.default_rng(7)
    pieces = []
    for piece in (clip[:2], clip[2:]):
        if not DISTORTIONS[name].each_frame:
            rng = np.random.default_rng(7)
        pieces.append(DISTORTIONS[name].apply(rng, piece, 4))
    assert (np.concatenate(pieces) == applied(name, clip, 4, 7)).all()


@pytest.mark.parametrize("name", DISTORTIONS)
@pytest.mark.parametrize("size", [(16, 33), (1, 1), (7, 240)])
def test_small_and_odd_pictures_come_back_whole(name, size):
    frames = np.random.default_rng(1).integers(0, 256, (1, *size, 3), dtype=np.uint8)
    for level in LEVELS:
        assert applied(name, frames, level).shape == frames.shape


@pytest.mark.parametrize("name", MOVED)
@pytest.mark.parametrize("level", LEVELS)
def test_maps_move_as_the_frames_do(name, level, clip):
    maps = clip[..., 0]
    moved = DISTORTIONS[name].move(np.random.default_rng(4), maps, level)
    frames = applied(name, maps[..., None].repeat(3, -1), level, 4)
    # The colours part where there is aberration; then a pixel is as forged as its most forged colour.
    assert (moved == frames.max(-1)).all()
    assert (moved != maps).any()


def test_the_distortions_that_move_maps_are_the_geometric_ones():
    assert MOVED == ["row_jitter", "optical_distortion", "elastic", "aberration"]


def test_a_mix_is_its_steps_in_order(clip):
    steps = [Step("posterise", 4), Step("brightness", 3)]
    mixed = distort(np.random.default_rng(0), clip, steps)
    assert mixed.shape == clip.shape
    assert (mixed != distort(np.random.default_rng(0), clip, steps[::-1])).any()
    assert (distort(np.random.default_rng(0), clip, []) == clip).all()


def test_a_mix_moves_the_maps_through_all_of_its_steps(clip):
    steps = [Step("row_jitter", 3), Step("jpeg", 5), Step("elastic", 5)]
    maps = clip[..., 0]
    frames, moved = distort_with_maps(np.random.default_rng(0), clip, maps, steps)
    assert (frames == distort(np.random.default_rng(0), clip, steps)).all()
    seeds = seeds_of(np.random.default_rng(0), steps)
    expected = DISTORTIONS["row_jitter"].move(np.random.default_rng(seeds[0]), maps, 3)
    expected = DISTORTIONS["elastic"].move(np.random.default_rng(seeds[2]), expected, 5)
    assert (moved == expected).all()


@pytest.mark.parametrize(
    ("name", "level", "told"),
    [
        ("XX", 1, "XX is no distortion: choose of CS, CC, BW"),
        ("cs", 1, "cs is no distortion"),
        ("CS", 0, "0 is no level of CS: they are 1 to 5"),
        ("jpeg", 6, "6 is no level of jpeg"),
    ],
)
def test_what_is_no_distortion_or_no_level_is_refused(name, level, told):
    with pytest.raises(DistortionError, match=told):
        step(name, level)


@given(st.integers(0, 2**32), st.sampled_from(MIXED))
def test_a_mix_never_has_a_type_twice(seed, count):
    steps = draw_steps(np.random.default_rng(seed), count)
    assert len({step.name for step in steps}) == count
    assert {step.name for step in steps} <= DEEPERFORENSICS.keys()
    assert {step.level for step in steps} <= set(LEVELS)


def test_types_levels_and_orders_are_equally_likely():
    rng = np.random.default_rng(0)
    mixes = [draw_steps(rng, 2) for _ in range(4200)]
    for place in (0, 1):
        names = Counter(mix[place].name for mix in mixes)
        assert names.keys() == DEEPERFORENSICS.keys()
        assert min(names.values()) > 500
        assert min(Counter(mix[place].level for mix in mixes).values()) > 700
    assert len({tuple(step.name for step in mix) for mix in mixes}) == 42


def test_a_level_that_is_given_is_everyones():
    assert {step.level for step in draw_steps(np.random.default_rng(0), 4, 3)} == {3}


def test_more_than_there_are_cannot_be_mixed():
    with pytest.raises(DistortionError, match="a mix of 3 cannot be drawn from 2 distortions"):
        draw_steps(np.random.default_rng(0), 3, names=("CS", "CC"))


@pytest.mark.slow
def test_the_law_of_files():
    rng = np.random.default_rng(1)
    files = [drawn_by_the_law_of_files(rng, AUGMENTATIONS["enhanced"]) for _ in range(10_000)]
    counts = Counter(map(len, files))
    assert 60 < counts[0] < 140
    assert 60 < counts[1] < 140
    assert all(3000 < counts[count] < 3500 for count in MIXED)
    assert {step.name for steps in files for step in steps} == FORGERYNET.keys()
    assert all(len({step.name for step in steps}) == len(steps) for steps in files)
    assert drawn_by_the_law_of_files(rng, AUGMENTATIONS["weak"]) == ()


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
    first = crops[:1]
    assert (distort_crops(rng(), first, [Step(name, 4)]) == distort(rng(), first, [Step(name, 4)])).all()


def test_video_compression_codes_each_crop_alone_whatever_is_beside_it(crops):
    together = distort_crops(rng(), crops, [Step("VC", 3)])
    alone = np.concatenate([distort_crops(rng(), crop[None], [Step("VC", 3)]) for crop in crops])
    assert (together == alone).all()
    # As one clip, later frames are predicted from earlier ones.
    assert (distort(rng(), crops, [Step("VC", 3)]) != together).any()


@pytest.mark.parametrize("level", [1, 5])
def test_blocks_lie_on_crops_as_densely_as_on_a_picture_of_256_px(level):
    crops = np.zeros((200, 64, 64, 3), np.uint8)
    grey = (distort_crops(rng(), crops, [Step("BW", level)]) == GREY).mean()
    whole = (block_wise(rng(), np.zeros((20, 256, 256, 3), np.uint8), level) == GREY).mean()
    assert grey == pytest.approx(whole, rel=0.15)
    assert not (block_wise(rng(), crops, level) == GREY).any()


def test_a_mix_on_crops_applies_its_steps_in_order(crops):
    steps = [Step("GNC", 5), Step("CC", 5)]
    forth, back = distort_crops(rng(), crops, steps), distort_crops(rng(), crops, steps[::-1])
    assert forth.max() <= 255 * 0.35  # darkened last
    assert back.max() > 255 * 0.35

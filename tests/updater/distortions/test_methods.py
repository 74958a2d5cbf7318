"""Every distortion keeps what all promise: shape, seed, levels, one draw a clip, maps that move along."""

from pathlib import Path

import numpy as np
import pytest

from updater.benchmark.synthetic.families import FAMILIES
from updater.distortions import methods
from updater.distortions.apply import distort, distort_with_maps, seeds_of
from updater.distortions.distortion import LEVELS, DistortionError, Step
from updater.distortions.methods import (
    AUGMENTATIONS,
    DEEPERFORENSICS,
    DISTORTIONS,
    FORGERYNET,
    GROUPS,
    step,
)
from updater.outliers.pseudo_forgeries import OPERATIONS

FOLDER = Path(methods.__file__).parent
HELPERS = {"ycbcr", "stills", "displacement", "luma"}
MOVED = [name for name, distortion in DISTORTIONS.items() if distortion.move]


@pytest.fixture(scope="module")
def clip():
    """Three frames of 264 × 272 with edges and ramps, alike."""
    rng = np.random.default_rng(0)
    blocks = rng.integers(20, 236, (11, 17, 3)).repeat(24, 0).repeat(16, 1).astype(float)
    ramp = np.linspace(-20, 20, 272)[None, :, None]
    return np.clip(blocks + ramp, 0, 255).astype(np.uint8)[None].repeat(3, 0)


def applied(name, frames, level, seed=0):
    return DISTORTIONS[name].apply(np.random.default_rng(seed), frames, level)


def test_there_are_seven_and_thirty_six():
    assert len(DEEPERFORENSICS) == 7
    assert {group: len(those) for group, those in GROUPS.items()} == {
        "compression": 7,
        "transmission": 6,
        "capture": 13,
        "colour": 10,
    }
    assert len(FORGERYNET) == 36
    assert len(DISTORTIONS) == 43


@pytest.mark.parametrize("group", [*GROUPS, "deeperforensics"])
def test_each_file_is_one_distortion_with_a_line(group):
    files = {path.stem for path in (FOLDER / group).glob("*.py")} - HELPERS - {"__init__"}
    found = {
        distortion.apply.__module__.rpartition(".")[2]
        for distortion in (GROUPS.get(group) or DEEPERFORENSICS).values()
    }
    assert found == files
    assert group == "deeperforensics" or found == set(GROUPS[group])


def test_the_augmentations_are_sets_of_ours():
    assert AUGMENTATIONS["weak"] == ()
    assert set(AUGMENTATIONS["normal"]) < set(AUGMENTATIONS["enhanced"]) == set(FORGERYNET)


def test_kinds_are_the_words_of_families_and_pseudo_forgeries():
    words = set().union(
        *(family.kinds for family in FAMILIES.values()),
        *(operation.kinds for operation in OPERATIONS.values()),
    )
    assert set().union(*(distortion.kinds for distortion in DISTORTIONS.values())) <= words


@pytest.mark.parametrize("name", DISTORTIONS)
def test_a_distortion_changes_a_copy_and_repeats_itself(name, clip):
    given = clip.copy()
    once = applied(name, given, 2)
    assert (given == clip).all()
    assert once.dtype == np.uint8
    assert once.shape == clip.shape
    assert (once != clip).any()
    assert (applied(name, given, 2) == once).all()


@pytest.mark.parametrize(
    "name", [name for name in DISTORTIONS if name not in ("channel_shuffle", "saturation")]
)
def test_the_highest_level_is_farther_from_the_original_than_the_lowest(name, clip):
    def away(level):
        return np.mean(
            [(applied(name, clip[:1], level, seed) - clip[:1].astype(float)) ** 2 for seed in range(3)]
        )

    assert away(5) > 1.1 * away(1)


@pytest.mark.parametrize("name", [name for name in DISTORTIONS if not DISTORTIONS[name].rate_factors])
def test_frames_share_a_draw_unless_each_has_its_own(name, clip):
    first, second, third = applied(name, clip, 5)
    alike = (first == second).all() and (second == third).all()
    assert alike != DISTORTIONS[name].each_frame


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

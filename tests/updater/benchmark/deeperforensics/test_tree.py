"""Our own clips in the data set's layout, read by the reader of the data set."""

from updater.benchmark.data.deeperforensics import VARIANTS, load_deeperforensics, load_hidden
from updater.benchmark.deeperforensics import tree as trees
from updater.benchmark.deeperforensics.tree import (
    DISTORTED,
    HIDDEN_FOLDER,
    LEARNT,
    LEFT_OUT,
    REALS_FOLDER,
    Target,
    clips_of,
    steps_of,
)
from updater.distortions.deeperforensics import DEEPERFORENSICS
from updater.distortions.meta import read_meta

COUNTS = {"sing": 1, "rand": 1, "mix2": 2, "mix3": 3, "mix4": 4}


def test_every_variant_is_read_whole_each_real_in_the_split_and_under_the_line_of_its_forgery(tree):
    for variant in ("std", *DISTORTED):
        found = load_deeperforensics(tree, tree / REALS_FOLDER, variant)
        assert found.notes == ()
        forged = {one.path.name[:3]: one for one in found.entries if one.label}
        real = {one.path.stem: one for one in found.entries if not one.label}
        assert forged.keys() == real.keys()
        assert sorted(one.split for one in forged.values()) == ["test", "test", "train", "train", "val"]
        for number, one in forged.items():
            assert (real[number].split, real[number].group) == (one.split, one.group)
            assert real[number].distortions == one.distortions
            assert not real[number].distorted
            assert len(one.distortions) == COUNTS.get(variant, 0)


def test_a_meta_line_says_what_was_drawn(tree):
    lines = read_meta(
        tree / f"lists/manipulated_videos_distortions_meta/manipulated_videos_{VARIANTS['mix3']}_meta.txt"
    )
    target = Target(1, LEARNT[1], "train")
    assert lines[f"{VARIANTS['mix3']}/{target.name}"] == steps_of(0, target, "mix3")
    single = {steps_of(0, Target(number, "", ""), "sing") for number in range(100)}
    assert {step.name for (step,) in single} == set(DEEPERFORENSICS)
    assert {step.level for (step,) in single} == {5}


def test_the_hidden_test_is_of_families_that_nothing_learnt_and_its_targets_are_nobody_s_else(tree):
    found = load_hidden(tree / HIDDEN_FOLDER)
    assert sorted(one.label for one in found.entries) == [0, 0, 1, 1]
    assert not set(LEFT_OUT) & set(LEARNT)
    trained = load_deeperforensics(tree, tree / REALS_FOLDER, "std")
    numbers = {one.path.name[:3] for one in trained.entries}
    assert not numbers & {one.path.stem for one in found.entries}


def test_a_target_is_the_same_every_time_and_its_forgery_differs_from_it(monkeypatch):
    monkeypatch.setattr(trees, "FRAMES", 2)
    monkeypatch.setattr(trees, "SIDE_PX", 64)
    target = Target(3, "smoothed", "train")
    once, again, other = clips_of(0, target), clips_of(0, target), clips_of(1, target)
    assert once == again
    assert once[0] != once[1]
    assert once[0] != other[0]

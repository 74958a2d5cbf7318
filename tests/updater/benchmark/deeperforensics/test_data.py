"""What may be chosen of a run, clips as they are to be seen, and our own clips in the layout of the set."""

from dataclasses import replace

import numpy as np
import pytest

from updater.benchmark.data.deeperforensics import VARIANTS, load_deeperforensics, load_hidden
from updater.benchmark.deeperforensics import media, models
from updater.benchmark.deeperforensics import tree as trees
from updater.benchmark.deeperforensics.media import (
    SMALL,
    Reading,
    excerpts,
    materialise,
    of_both_labels,
    under,
)
from updater.benchmark.deeperforensics.run import RunChoiceError, RunChoices, variants_of
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
from updater.data.layouts.listed import Tally
from updater.distortions.deeperforensics import DEEPERFORENSICS
from updater.distortions.distortion import Step
from updater.distortions.meta import read_meta


def choices(train="std", test="std"):
    return RunChoices.from_names(train, test, "forensic", synthetic=True)


def test_trainings_and_tests_are_lists_of_variants_and_a_training_may_join_several():
    found = choices("std, std+mix3,std", "std,sing")
    assert found.train == ("std", "std+mix3")
    assert found.test == ("std", "sing")
    assert variants_of("std+mix3+std") == ("std", "mix3")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"train": "std+mix5"}, r"--train 'mix5' is no variant: choose of std, sing"),
        ({"train": ""}, "--train '' is no variant"),
        ({"train": "std+reenact"}, "--train 'reenact' is no variant"),
        ({"test": "hidden"}, "--test 'hidden' is no variant"),
        ({"test": "level6"}, "--test 'level6' is no variant"),
    ],
)
def test_a_variant_that_is_none_is_one_line_that_names_those_that_are(wrong, said):
    with pytest.raises(RunChoiceError, match=said):
        choices(**wrong)


@pytest.mark.parametrize(
    "model", ["x3d", "x3d_m", "lstm", "c3d:resnet18", "tsn:no_such_model", "frames:no_such_model", "frames:"]
)
def test_a_model_that_is_none_is_one_line(model):
    with pytest.raises(models.ModelError, match="--model") as caught:
        models.check(model)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "model", ["forensic", "frames:resnet18", "c3d", "i3d", "lstm:resnet18", "tsn:resnet18"]
)
def test_the_papers_networks_are_models(model):
    models.check(model)


def test_single_distortions_are_tested_by_what_saw_none_where_that_is_trained():
    assert choices("std+rand,std").of_distortions == "std"
    assert choices("std+rand,sing").of_distortions == "std+rand"


@pytest.fixture
def entries(tree):
    return load_deeperforensics(tree, tree / REALS_FOLDER, "sing").entries


def test_a_real_is_distorted_as_its_forgery_was_and_a_forgery_is_taken_as_it_is(entries, tmp_path):
    for entry in entries[:2]:
        assert materialise(entry, tmp_path) == entry.path
    real = next(one for one in entries if not one.label)
    made = materialise(real, tmp_path)
    assert made != real.path
    assert made.read_bytes() != real.path.read_bytes()


def test_what_was_made_once_is_not_made_again(entries, tmp_path, monkeypatch):
    real = next(entry for entry in entries if not entry.label)
    made = materialise(real, tmp_path)

    def forbidden(*_, **__):
        raise AssertionError("made again")

    monkeypatch.setattr(media, "distort_file", forbidden)
    assert materialise(real, tmp_path) == made


def test_a_clip_that_cannot_be_distorted_is_left_out_and_counted(entries, tmp_path):
    broken = tmp_path / "broken.mp4"
    real = next(entry for entry in entries if not entry.label)
    broken.write_bytes(real.path.read_bytes()[:400])
    tally = Tally()
    reading = Reading(SMALL, tmp_path / "cache", lambda *at: None, tally)
    items = reading.clips("test", [*entries[:2], replace(real, path=broken)])
    assert len(items) == 2
    assert items.crop_features.shape[0] == len(items.crops)
    (note,) = tally.notes()
    assert note.startswith("1 clips cannot be distorted, and are left out")


def test_excerpts_are_of_both_labels_and_a_distortion_changes_each(entries):
    some = excerpts(of_both_labels(entries, 4))
    assert sorted(one.entry.label for one in some) == [0, 0, 1, 1]
    plain, dark = under(some, [], SMALL), under(some, [Step("CC", 5)], SMALL)
    assert plain.crops.shape == dark.crops.shape == (4 * 4, 128, 128, 3)
    assert dark.crops.mean() == pytest.approx(0.35 * plain.crops.mean(), rel=0.02)
    assert (under(some, [Step("GNC", 2)], SMALL).crops == under(some, [Step("GNC", 2)], SMALL).crops).all()
    assert np.array_equal(plain.starts, [0, 4, 8, 12, 16])


COUNTS = {"sing": 1, "rand": 1, "mix2": 2, "mix3": 3, "mix4": 4}


def test_every_variant_is_read_whole_each_real_in_the_split_and_under_the_line_of_its_forgery(tree):
    for variant in ("std", *DISTORTED):
        found = load_deeperforensics(tree, tree / REALS_FOLDER, variant)
        assert found.notes == ()
        forged = {entry.path.name[:3]: entry for entry in found.entries if entry.label}
        real = {entry.path.stem: entry for entry in found.entries if not entry.label}
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
    assert sorted(entry.label for entry in found.entries) == [0, 0, 1, 1]
    assert not set(LEFT_OUT) & set(LEARNT)
    trained = load_deeperforensics(tree, tree / REALS_FOLDER, "std")
    numbers = {entry.path.name[:3] for entry in trained.entries}
    assert not numbers & {entry.path.stem for entry in found.entries}


def test_a_target_is_the_same_every_time_and_its_forgery_differs_from_it(monkeypatch):
    monkeypatch.setattr(trees, "FRAMES", 2)
    monkeypatch.setattr(trees, "SIDE_PX", 64)
    target = Target(3, "smoothed", "train")
    once, again, other = clips_of(0, target), clips_of(0, target), clips_of(1, target)
    assert once == again
    assert once[0] != once[1]
    assert once[0] != other[0]

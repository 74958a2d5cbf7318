"""What may be chosen of a run, clips as they are to be seen, and our own clips in the layout of the set."""

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics

from updater.benchmark.continual.setup import Setup
from updater.benchmark.data.deeperforensics import VARIANTS, load_deeperforensics, load_hidden
from updater.benchmark.deeperforensics import models
from updater.benchmark.deeperforensics import run as runs
from updater.benchmark.deeperforensics import tree as trees
from updater.benchmark.deeperforensics.choices import MODELS, RunChoiceError, RunChoices, variants_of
from updater.benchmark.deeperforensics.run import benchmark, figures
from updater.benchmark.deeperforensics.tree import Data, read
from updater.benchmark.forgerynet import training
from updater.benchmark.networks.names import NetworkError, check_video
from updater.benchmark.report.harness import run_seeds
from updater.benchmark.report.report import report_json, write_reports
from updater.benchmark.report.run_folder import ResultsError, load_runs
from updater.benchmark.report.table import compare
from updater.data.layouts.entries import LayoutError
from updater.data.layouts.listed import Tally
from updater.distortions.deeperforensics import DEEPERFORENSICS
from updater.distortions.distortion import Step
from updater.distortions.files import read_meta
from updater.progress import no_progress


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
        ({"train": "df+nt"}, "--train 'df' is no variant: choose of std, sing, rand, mix2, mix3, mix4$"),
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
    with pytest.raises(NetworkError, match="--model") as caught:
        check_video(model, MODELS)
    assert "\n" not in str(caught.value)


def test_the_papers_networks_are_models():
    for model in ("forensic", "frames:resnet18", "c3d", "i3d", "lstm:resnet18", "tsn:bn_inception"):
        check_video(model, MODELS)


def test_single_distortions_are_tested_by_what_saw_none_where_that_is_trained():
    assert choices("std+rand,std").of_distortions == "std"
    assert choices("std+rand,sing").of_distortions == "std+rand"


@pytest.fixture
def entries(tree):
    return load_deeperforensics(tree, tree / trees.REALS_FOLDER, "sing").entries


def test_a_real_is_distorted_as_its_forgery_was_and_a_forgery_is_taken_as_it_is(entries, tmp_path):
    for entry in entries[:2]:
        assert models.materialise(entry, tmp_path) == entry.path
    real = next(one for one in entries if not one.label)
    made = models.materialise(real, tmp_path)
    assert made != real.path
    assert made.read_bytes() != real.path.read_bytes()


def test_what_was_made_once_is_not_made_again(entries, tmp_path, monkeypatch):
    real = next(entry for entry in entries if not entry.label)
    made = models.materialise(real, tmp_path)

    def forbidden(*_, **__):
        raise AssertionError("made again")

    monkeypatch.setattr(models, "distort_file", forbidden)
    assert models.materialise(real, tmp_path) == made


def test_a_clip_that_cannot_be_distorted_is_left_out_and_counted(entries, tmp_path):
    broken = tmp_path / "broken.mp4"
    real = next(entry for entry in entries if not entry.label)
    broken.write_bytes(real.path.read_bytes()[:400])
    tally = Tally()
    reading = models.Reading(models.SMALL, tmp_path / "cache", lambda *at: None, tally)
    items = reading.clips("test", [*entries[:2], replace(real, path=broken)])
    assert len(items) == 2
    assert items.crop_features.shape[0] == len(items.crops)
    (note,) = tally.notes()
    assert note.startswith("1 clips cannot be distorted, and are left out")


def test_excerpts_are_of_both_labels_and_a_distortion_changes_each(entries):
    some = models.excerpts(models.of_both_labels(entries, 4))
    assert sorted(entry.label for entry, _ in some) == [0, 0, 1, 1]
    plain, dark = models.under(some, [], models.SMALL), models.under(some, [Step("CC", 5)], models.SMALL)
    assert plain.crops.shape == dark.crops.shape == (4 * 4, 128, 128, 3)
    assert dark.crops.mean() == pytest.approx(0.35 * plain.crops.mean(), rel=0.02)
    once, again = (models.under(some, [Step("GNC", 2)], models.SMALL).crops for _ in range(2))
    assert (once == again).all()
    assert np.array_equal(plain.starts, [0, 4, 8, 12, 16])


COUNTS = {"sing": 1, "rand": 1, "mix2": 2, "mix3": 3, "mix4": 4}


def test_every_variant_is_read_whole_each_real_in_the_split_and_under_the_line_of_its_forgery(tree):
    for variant in ("std", *trees.DISTORTED):
        found = load_deeperforensics(tree, tree / trees.REALS_FOLDER, variant)
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
    target = trees.Target(1, trees.LEARNT[1], "train")
    assert lines[f"{VARIANTS['mix3']}/{target.name}"] == trees.steps_of(0, target, "mix3")
    single = {trees.steps_of(0, trees.Target(number, "", ""), "sing") for number in range(100)}
    assert {step.name for (step,) in single} == set(DEEPERFORENSICS)
    assert {step.level for (step,) in single} == {5}


def test_the_hidden_test_is_of_families_that_nothing_learnt_and_its_targets_are_nobody_s_else(tree):
    found = load_hidden(tree / trees.HIDDEN)
    assert sorted(entry.label for entry in found.entries) == [0, 0, 1, 1]
    assert not set(trees.LEFT_OUT) & set(trees.LEARNT)
    trained = load_deeperforensics(tree, tree / trees.REALS_FOLDER, "std")
    numbers = {entry.path.name[:3] for entry in trained.entries}
    assert not numbers & {entry.path.stem for entry in found.entries}


def test_a_target_is_the_same_every_time_and_its_forgery_differs_from_it(monkeypatch):
    monkeypatch.setattr(trees, "FRAMES", 2)
    monkeypatch.setattr(trees, "SIDE_PX", 64)
    target = trees.Target(3, "smoothed", "train")
    once, again, other = trees.clips_of(0, target), trees.clips_of(0, target), trees.clips_of(1, target)
    assert once == again
    assert once[0] != once[1]
    assert once[0] != other[0]


# Trainings and tests of a run, which is done once, what its reports say, and its figures.
CHOICES = RunChoices.from_names("std,std+rand", "std,mix2", "forensic", synthetic=False)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def data(tree):
    found = read(CHOICES, tree, tree / trees.REALS_FOLDER, tree / trees.HIDDEN, tree, print)
    assert found.hidden
    return Data(found.name, found.digest, found.variants, found.hidden, models.SMALL, found.notes)


def test_what_a_run_takes_is_told_and_a_clip_that_is_trained_on_and_tested_on_is_refused(tree, tmp_path):
    data, told = tmp_path / "data", []
    shutil.copytree(tree, data)
    read(CHOICES, data, data / trees.REALS_FOLDER, data / trees.HIDDEN, tmp_path, told.append)
    (line,) = told
    assert line.startswith("20 clips, at most 1440 crops of 128 px: 0.0")
    first, *_, last = sorted((data / "manipulated_videos/end_to_end").iterdir())
    next((data / "hidden/real").iterdir()).unlink()
    with pytest.raises(LayoutError, match="train std, test hidden: test needs two reals or more"):
        read(CHOICES, data, data / trees.REALS_FOLDER, data / trees.HIDDEN, tmp_path, print)
    last.write_bytes(first.read_bytes())
    with pytest.raises(LayoutError, match=r"train std, test std: .*000_M000.mp4 is trained on.*same file"):
        read(CHOICES, data, data / trees.REALS_FOLDER, None, tmp_path, print)


@pytest.fixture(scope="module")
def measure(data, tmp_path_factory):
    """Runs the protocol into a folder: little training, two clips under each distortion, at two levels."""
    cache = tmp_path_factory.mktemp("cache")

    def measure(folder, choices=CHOICES, seeds=range(1)):
        reading = models.Reading(models.SMALL, cache, no_progress, Tally())
        _, model = models.model_of(replace(choices, synthetic=True), CPU, None)
        of = benchmark(choices, data, model(reading), reading)
        return list(run_seeds(of, seeds, folder, command=("forgewatch",), device="cpu", progress=no_progress))

    assert runs.LEVELS == (1, 2, 3, 4, 5), "as published"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "CLIPS_BY_DISTORTION", 2)
        patch.setattr(runs, "LEVELS", (1, 5))
        patch.setattr(Setup, "least_steps", 20)
        patch.setitem(training.SMALL, "video", training.NetworkRecipe(32, 2, 2, 0.01, 0.01, 0.0, (), 0.0, 3))
        yield measure


@pytest.fixture(scope="module")
def folder(measure, tmp_path_factory):
    """Where two seeds are done."""
    folder = tmp_path_factory.mktemp("runs")
    measure(folder, seeds=range(2))
    return folder


def test_every_training_is_tested_on_every_test_and_one_under_each_distortion(folder, tmp_path):
    found = load_runs(folder)
    said = json.loads(report_json(found))
    assert list(said["table"]) == ["std", "std+rand"]
    for tested in said["table"].values():
        assert list(tested) == ["std", "mix2", "hidden"]
        assert all({"acc", "auc", "balanced_acc", "log_loss"} == set(of) for of in tested.values())
        assert all(one["n"] == 4 and one["sd"] is not None for of in tested.values() for one in of.values())
    assert list(said["by_distortion"]) == [f"{name}:{level}" for name in DEEPERFORENSICS for level in (1, 5)]
    assert said["by_distortion"]["GNC:5"]["auc"]["n"] == 2
    write_reports(tmp_path, found)
    page = (tmp_path / "report.html").read_text()
    assert page.count("<img") == 2 + 2, "each figure by test, and by distortion"
    assert "acc by distortion and level, trained on std" in page
    assert "| GNC:5 |" in (tmp_path / "report.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("model", ["tsn:test_resnet", "lstm:test_resnet"])
def test_the_papers_networks_on_videos_are_trained_and_tested_as_the_others_are(measure, tmp_path, model):
    (run,) = measure(tmp_path, RunChoices.from_names("std", "std", model, synthetic=True))
    assert set(run.outcome.table["std"]) == {"std", "hidden"}
    assert all(0 <= (cell["acc"].value or 0) <= 1 for cell in run.outcome.table["std"].values())
    assert len(run.outcome.by_distortion) == 14
    losses = {step: of["log_loss"].value for step, of in run.outcome.by_distortion.items()}
    assert losses["GNC:5"] != losses["CC:5"], "each sees its own distortion"


def test_a_seed_that_is_done_is_not_redone_or_overwritten_by_another_choice(measure, folder, monkeypatch):
    monkeypatch.setattr(runs, "read_media", lambda *_: pytest.fail("done again"))
    assert measure(folder, seeds=range(2)) == load_runs(folder)
    with pytest.raises(pytest.fail.Exception, match="done again"):
        measure(folder, seeds=range(3))
    with pytest.raises(ResultsError, match="holds a run of test"):
        measure(folder, RunChoices.from_names("std,std+rand", "std", "forensic", synthetic=False))
    rows = {name: both for name, *both in compare([folder, folder]).rows}
    assert rows["seeds"] == ["2", "2"]
    assert {"acc, std on hidden", "auc, std+rand on mix2"} < rows.keys()


def test_clips_are_told_right_by_a_score_of_a_half_whatever_the_classes_sizes():
    found = figures([0.5, 0.4, 0.1, 0.2, 0.7], [1, 1, 0, 0, 0])
    assert found["acc"] == pytest.approx(3 / 5)
    assert found["balanced_acc"] == pytest.approx((1 / 2 + 2 / 3) / 2)
    assert found["auc"] == pytest.approx(4 / 6)


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=4, max_size=60))
def test_all_figures_are_those_of_scikit_learn(clips):
    scores, labels = np.array([score for score, _ in clips]), np.array([forged for _, forged in clips], int)
    labels[:2] = 0, 1
    found = figures(scores, labels)
    said = (scores >= 0.5).astype(int)
    assert found["acc"] == pytest.approx(metrics.accuracy_score(labels, said))
    assert found["balanced_acc"] == pytest.approx(metrics.balanced_accuracy_score(labels, said))
    assert found["auc"] == pytest.approx(metrics.roc_auc_score(labels, scores))
    assert found["log_loss"] == pytest.approx(metrics.log_loss(labels, scores.clip(1e-7, 1 - 1e-7)))


def test_one_class_alone_has_no_auc():
    found = figures([0.2, 0.9], [1, 1])
    assert found["acc"] == 0.5
    assert math.isnan(found["auc"])
    assert math.isnan(found["balanced_acc"])

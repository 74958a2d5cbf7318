"""Trainings and tests of a run, which is done once, what its reports say, and its figures."""

import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn import metrics

from updater.benchmark.continual.setup import Setup
from updater.benchmark.deeperforensics import run as runs
from updater.benchmark.deeperforensics.media import SMALL, Reading
from updater.benchmark.deeperforensics.models import model_of
from updater.benchmark.deeperforensics.run import Data, RunChoices, benchmark, figures, read
from updater.benchmark.deeperforensics.tree import HIDDEN_FOLDER, REALS_FOLDER
from updater.benchmark.forgerynet import training
from updater.benchmark.report.harness import run_seeds
from updater.benchmark.report.report import compare, report_json, write_reports
from updater.benchmark.report.run_folder import ResultsError, load_runs
from updater.data.layouts.listed import Tally
from updater.distortions.deeperforensics import DEEPERFORENSICS
from updater.progress import no_progress

CHOICES = RunChoices.from_names("std,std+rand", "std,mix2", "forensic", synthetic=False)
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def data(tree, tmp_path_factory):
    reals, hidden = tree / REALS_FOLDER, tree / HIDDEN_FOLDER
    found = read(CHOICES, tree, reals, hidden, tmp_path_factory.mktemp("home"), no_progress)
    assert found.hidden
    return Data(found.name, found.digest, found.variants, found.hidden, SMALL, found.notes)


@pytest.fixture(scope="module")
def measure(data, tmp_path_factory):
    """Runs the protocol into a folder: little training, two clips under each distortion, at two levels."""
    cache = tmp_path_factory.mktemp("cache")

    def measure(folder, choices=CHOICES, seeds=range(1)):
        reading = Reading(SMALL, cache, no_progress, Tally())
        model = model_of(choices.model, reading, CPU, synthetic=True)
        of = benchmark(choices, data, model, reading)
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
        assert all(
            cell["n"] == 4 and cell["sd"] is not None for of in tested.values() for cell in of.values()
        )
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


def test_a_seed_that_is_done_is_not_done_again_and_another_choice_does_not_overwrite_it(
    measure, folder, monkeypatch
):
    def forbidden(*_):
        raise AssertionError("done again")

    monkeypatch.setattr(runs, "read_media", forbidden)
    assert measure(folder, seeds=range(2)) == load_runs(folder)
    with pytest.raises(AssertionError, match="done again"):
        measure(folder, seeds=range(3))
    with pytest.raises(ResultsError, match="holds a run of test"):
        measure(folder, RunChoices.from_names("std,std+rand", "std", "forensic", synthetic=False))
    grid = compare([folder, folder])
    assert grid.rows[-1] == ("seeds", "2", "2")


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

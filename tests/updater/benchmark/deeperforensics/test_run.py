"""Trainings and tests of a run, which is done once, and what its reports say."""

import json

import pytest
import torch

from updater.benchmark.continual.setup import Setup
from updater.benchmark.data.listed import Tally
from updater.benchmark.deeperforensics import run as runs
from updater.benchmark.deeperforensics.choices import checked
from updater.benchmark.deeperforensics.data import Data, read
from updater.benchmark.deeperforensics.media import SMALL, Reading
from updater.benchmark.deeperforensics.plots import by_distortion, pictures
from updater.benchmark.deeperforensics.run import run
from updater.benchmark.deeperforensics.tree import HIDDEN_FOLDER, REALS_FOLDER
from updater.benchmark.forgerynet.report import compare, report_json, write_reports
from updater.benchmark.report.run_folder import ResultsError

CHOICES = checked("std,std+rand", "std,mix2", "forensic", synthetic=False)


@pytest.fixture(scope="module")
def data(tree, tmp_path_factory):
    found = read(
        CHOICES,
        tree,
        tree / REALS_FOLDER,
        tree / HIDDEN_FOLDER,
        tmp_path_factory.mktemp("home"),
        lambda *at: None,
    )
    assert found.hidden
    return Data(found.name, found.digest, found.variants, found.hidden, SMALL, found.notes)


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def measure(data, cache, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "CLIPS_BY_DISTORTION", 2)
    monkeypatch.setattr(Setup, "least_steps", 20)

    def measure(choices=CHOICES, seeds=range(1)):
        reading = Reading(SMALL, cache, lambda *at: None, Tally())
        options = {"command": ("forgewatch",), "device": torch.device("cpu"), "progress": lambda *at: None}
        return list(run(choices, data, seeds, tmp_path / "runs", reading=reading, **options))

    return measure


def test_every_training_is_tested_on_every_test_and_one_under_each_distortion(measure, tmp_path):
    found = measure(seeds=range(2))
    said = json.loads(report_json(found))
    assert list(said["table"]) == ["std", "std+rand"]
    for tested in said["table"].values():
        assert list(tested) == ["std", "mix2", "hidden"]
        assert all({"acc", "auc", "balanced_acc", "log_loss"} == set(of) for of in tested.values())
        assert all(one["n"] == 4 and one["sd"] is not None for of in tested.values() for one in of.values())
    assert len(said["by_distortion"]) == 35
    assert said["by_distortion"]["GNC:5"]["auc"]["n"] == 2
    assert by_distortion(found, "acc").shape == (7, 5)
    write_reports(tmp_path, found, None, pictures(found))
    page = (tmp_path / "report.html").read_text()
    assert page.count("<img") == 2 + 4
    assert "acc by distortion and level, trained on std" in page
    assert "| GNC:5 |" in (tmp_path / "report.md").read_text()


def test_a_seed_that_is_done_is_not_done_again_and_another_choice_does_not_overwrite_it(
    measure, monkeypatch, tmp_path
):
    once = measure()

    def forbidden(*_):
        raise AssertionError("done again")

    monkeypatch.setattr(runs, "read_media", forbidden)
    assert measure() == once
    with pytest.raises(AssertionError, match="done again"):
        measure(seeds=range(2))
    with pytest.raises(ResultsError, match="holds a run of test"):
        measure(checked("std,std+rand", "std", "forensic", synthetic=False))
    grid = compare([tmp_path / "runs", tmp_path / "runs"])
    assert grid.rows[-1] == ("seeds", "1", "1")

"""A task runs over seeds, each in a folder that is not done again, and tells every figure with n and sd."""

import json
import math
import shutil
from dataclasses import replace
from functools import partial

import pytest

from updater.benchmark.forgerynet import choices as chosen
from updater.benchmark.forgerynet import run, tree
from updater.benchmark.report.report import report_json, write_reports
from updater.benchmark.report.run_folder import ResultsError
from updater.benchmark.report.table import compare
from updater.data.layouts.entries import LayoutError
from updater.data.layouts.forgerynet import load_forgerynet

FEW = {"px": 32, "batch": 8, "steps": 12, "rate": 0.05}
CHOICES = chosen.Choices("image", "test_resnet", synthetic=False, input="native", augmentation="weak", **FEW)


@pytest.fixture
def measure(pictures, tmp_path, run_task):
    def go(choices=CHOICES, folder=tmp_path / "run", **more):
        return run_task(choices, pictures, folder, **more)

    return go


def test_every_figure_has_a_mean_a_deviation_and_a_number_of_items_by_family_too(measure, tmp_path):
    runs = measure(seeds=range(2))
    write_reports(tmp_path / "run", runs)
    report = json.loads((tmp_path / "run" / "report.json").read_bytes())
    assert report == json.loads(report_json(runs))
    for figure in ("acc", "auc", "map_ovr", "acc_2", "auc_2"):
        both = [run.outcome.figures[figure].value for run in runs]
        assert all(one is not None and 0 <= one <= 1 for one in both)
        first, second = (one or 0 for one in both)
        assert report["figures"][figure]["mean"] == pytest.approx((first + second) / 2)
        assert report["figures"][figure]["sd"] == pytest.approx(abs(first - second) / math.sqrt(2))
        assert report["figures"][figure]["n"] == 16
    assert set(report["families"]) == {"FaceShifter", "Talking-head Video"}
    assert {one["auc"]["n"] for one in report["families"].values()} == {12}
    assert report["seeds"] == [0, 1]
    assert "Talking-head Video" in (tmp_path / "run" / "report.html").read_text()
    assert "| acc |" in (tmp_path / "run" / "report.md").read_text()


def test_a_network_learns_what_tells_forgeries_from_reals(measure):
    (run,) = measure(replace(CHOICES, steps=40))
    assert (run.outcome.figures["auc"].value or 0) > 0.9


def test_what_a_folder_holds_is_not_done_again(measure, monkeypatch):
    before = measure()
    monkeypatch.setitem(run.MEASURES, "image", lambda job: pytest.fail("measured again"))
    assert measure() == before
    with pytest.raises(pytest.fail.Exception, match="measured again"):
        measure(seeds=range(2))


def test_a_folder_of_other_choices_or_data_is_refused(measure, pictures):
    measure()
    with pytest.raises(ResultsError, match=r"holds a run of steps 12: name another folder with --out"):
        measure(replace(CHOICES, steps=13))
    lists = pictures / "Validation" / "image_list.txt"
    lists.write_text("\n".join(lists.read_text().splitlines()[1:]) + "\n")
    with pytest.raises(ResultsError, match="other data"):
        measure()


@pytest.mark.slow
def test_an_interrupted_run_ends_with_the_weights_of_an_unbroken_one(measure, tmp_path):
    unbroken = measure(replace(CHOICES, steps=10), folder=tmp_path / "unbroken")

    class StopHereError(Exception):
        pass

    steps = []

    def interrupt(stage, done, total):
        if "training" in stage:
            steps.append(done)
            if done == 7 and len(steps) == 7:
                raise StopHereError

    go = partial(measure, replace(CHOICES, steps=10), folder=tmp_path / "broken", progress=interrupt)
    with pytest.raises(StopHereError):
        go()
    resumed = go()
    assert steps[7] == 7  # behind the last checkpoint, of every second step
    assert resumed[0].outcome == unbroken[0].outcome


def test_cross_trains_on_each_group_and_tests_on_each(measure, tmp_path):
    runs = measure(replace(CHOICES, protocol="cross"))
    table = json.loads(report_json(runs))["table"]
    assert [*table, *table["replaced"], *table["remained"]] == 3 * ["replaced", "remained"]
    with pytest.raises(LayoutError, match="train has no forgery of DeepFakes: leave it out"):
        measure(replace(CHOICES, protocol="cross", train_on=("FaceShifter", "DeepFakes")))
    assert table["remained"]["replaced"]["auc"]["n"] == 12
    write_reports(tmp_path / "run", runs)
    assert "data:image/svg+xml" in (tmp_path / "run" / "report.html").read_text()


def test_a_single_family_is_trained_on_and_all_are_reported(measure):
    (run,) = measure(replace(CHOICES, train_on=("FaceShifter",)))
    assert run.outcome.about["trained_on"] == 12
    assert set(run.outcome.families) == {"FaceShifter", "Talking-head Video"}


def test_a_picture_that_cannot_be_decoded_is_left_out_and_counted(measure, pictures):
    broken = next((pictures / "Training").rglob("*.png"))
    broken.write_bytes(b"no picture")
    (run,) = measure()
    assert run.outcome.about["trained_on"] == 15
    assert [note for note in run.outcome.notes if "cannot be decoded" in note and str(broken) in note]


def test_a_tree_without_reals_is_one_line(measure, pictures):
    for broken in (pictures / "Training" / "image" / "train_release").glob("1[67]/*/*.png"):
        broken.write_bytes(b"no picture")
    with pytest.raises(LayoutError, match="train needs reals and forgeries that can be decoded"):
        measure()


def test_another_set_is_tested_on_and_the_releases_features_are_a_model(measure, pictures, tmp_path):
    listed = shutil.copytree(pictures, tmp_path / "other") / "Validation" / "image_list.txt"
    listed.write_text("\n".join(listed.read_text().splitlines()[:12]))
    (run,) = measure(replace(CHOICES, model="forensic", test_on=f"forgerynet={tmp_path / 'other'}"))
    assert (run.outcome.figures["auc"].value, run.outcome.figures["auc"].n) == (1, 12)
    assert run.outcome.about["trained_on"] == 16


def test_sets_that_lack_something_or_share_a_file_are_one_line(pictures):
    every = load_forgerynet(pictures, "image").entries
    train, test = ([entry for entry in every if entry.split == split] for split in ("train", "val"))
    tree.check_sets(train, test)
    for changed, said in (
        (([], test), "train needs two reals or more"),
        ((train, [entry for entry in test if not entry.label]), "test needs two forgeries or more"),
        ((train, test, lambda entry: -1 if entry is train[0] else entry.label), "train has a class of one"),
        ((train, [*test, train[0]]), f"{train[0].path} is trained on, and .* the same"),
    ):
        with pytest.raises(LayoutError, match=said):
            tree.check_sets(*changed)


def test_runs_stand_side_by_side_with_what_they_differ_in(measure, tmp_path):
    for steps in (12, 13):
        measure(replace(CHOICES, steps=steps), folder=tmp_path / str(steps))
    grid = compare([tmp_path / "12", tmp_path / "13"])
    assert ("steps", "12", "13") in grid.rows
    assert "auc" in [row[0] for row in grid.rows]
    assert "data" not in [row[0] for row in grid.rows]


_NOTHING = "--{} changes nothing of --task {} with --model {}"


@pytest.mark.parametrize(
    ("task", "model", "change", "said"),
    [
        ("image", "test_resnet", {"classes": 4}, "--classes 4 is none here: choose of 2, 3, 9"),
        ("image", "test_resnet", {"input": "whole"}, "--input whole is none here: choose of face, native"),
        ("image", "test_resnet", {"augmentation": "some"}, "some is none here: choose of weak, normal, enh"),
        ("image", "test_resnet", {"protocol": "cross", "classes": 3}, "choose --classes 2"),
        ("image", "test_resnet", {"train_on": ("Nobody",)}, "--train-on Nobody is none here: choose of rem"),
        ("image", "test_resnet", {"train_on": ("remained", "replaced")}, "with --protocol cross"),
        ("spatial", "localizer", {"model": "resnet18"}, "makes no maps: choose of localizer, unet"),
        ("spatial", "localizer:all", {}, "choose of localizer, :pseudo and :left-out"),
        ("spatial", "localizer:left-out", {"synthetic": False}, "use --synthetic"),
        ("spatial", "localizer", {"protocol": "cross"}, "protocol intra alone"),
        ("temporal", "convolutions", {"px": 96}, _NOTHING),
        ("temporal", "convolutions", {"steps": 5}, _NOTHING),
        ("temporal", "convolutions", {"input": "face"}, _NOTHING),
        ("temporal", "convolutions", {"augmentation": "enhanced"}, _NOTHING),
        ("spatial", "localizer", {"augmentation": "normal"}, _NOTHING),
        ("spatial", "localizer:pseudo", {"rate": 0.1}, _NOTHING),
        ("spatial", "unet:resnet10t", {"classes": 3}, _NOTHING),
    ],
)
def test_a_choice_that_is_none_or_would_change_nothing_is_one_line(task, model, change, said):
    choices = chosen.Choices.usual(task, model, synthetic=True)
    if change:
        assert chosen.check_choices(choices, chosen.OWN) == choices
    with pytest.raises(chosen.ChoiceError, match=said.format(*change, task, model)) as refused:
        chosen.check_choices(replace(choices, **change), chosen.OWN)
    assert "\n" not in str(refused.value)


def test_classes_are_numbered_as_the_paper_numbers_them():
    kinds = chosen.families_of("image", synthetic=False)
    assert [chosen.class_of("StyleGAN2", kinds, k) for k in (2, 3, 16)] == [1, 1, 11]
    assert [chosen.class_of("FaceShifter", kinds, k) for k in (2, 3, 16)] == [1, 2, 1]
    assert chosen.class_of("real", kinds, 16) == 0
    assert len(chosen.class_names(kinds, 16)) == 16
    assert len(chosen.families_of("video", synthetic=False)) == 8
    assert chosen.groups_named("each", chosen.OWN) == tuple(chosen.OWN)


def test_networks_that_are_taken_where_none_is_named_are_known():
    for task in chosen.TASKS.values():
        task.check(task.model)
        task.check(task.small_model)

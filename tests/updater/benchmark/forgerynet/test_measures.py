"""Figures of pictures and of maps are those of scikit-learn, and of the papers' definitions."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from sklearn import metrics

from updater.benchmark.forgerynet.choices import Choices
from updater.benchmark.forgerynet.measures import absent, cell_figures, image_figures, map_figures
from updater.benchmark.forgerynet.sights import Sample, look_at
from updater.benchmark.forgerynet.training import PAPER, SMALL
from updater.benchmark.forgerynet.views import by_chance, covering, in_segments, middle, training_clip
from updater.benchmark.forgerynet.views import test_clips as clips_of
from updater.data.layouts.entries import Entry
from updater.data.layouts.forgerynet import classes_of
from updater.data.layouts.listed import Tally
from updater.distortions.clip_writing import to_h264


@st.composite
def pairs(draw):
    """A map beside a truth that has both forged cells and others, in tenths of a half."""
    n = draw(st.integers(2, 20))
    values = st.lists(st.integers(0, 20), min_size=n, max_size=n)
    p, g = np.array(draw(values)) / 20, np.array(draw(values)) / 20
    g[:2] = 0, 1
    return p[None], g[None]


@pytest.mark.parametrize(
    ("p", "g", "name", "value"),
    [
        ([[0.05, 0.2, 0.5, 0.0]], [[0.0, 0.3, 0.45, 0.0]], "agree_0.1", 1),
        ([[0.05, 0.2, 0.5, 0.0]], [[0.0, 0.3, 0.45, 0.0]], "close_0.05", 0.75),
        ([[0.05, 0.2, 0.5, 0.0]], [[0.0, 0.3, 0.45, 0.0]], "l1", pytest.approx(0.05)),
        # One less what the paper prints.
        ([[0.0, 0.2]], [[0.2, 0.2]], "agree_0.1", 0.5),
        ([[0.0, 0.0]], [[0.2, 0.2]], "agree_0.1", 0),
        # 0.65 - 0.6 is above 0.05, as rounding has it.
        ([[0.65]], [[0.6]], "close_0.05", 1),
        ([[0.6501]], [[0.6]], "close_0.05", 0),
    ],
)
def test_cells_are_counted_as_the_paper_defines_them(p, g, name, value):
    assert cell_figures(p, g)[name] == value


@given(pairs())
def test_overlap_and_areas_are_those_of_scikit_learn(pair):
    p, g = pair
    forged, marked = (g >= 0.1).ravel(), (p >= 0.3).ravel()
    found = cell_figures(p, g, 0.3)
    assert found["iou"] == pytest.approx(metrics.jaccard_score(forged, marked))
    assert found["f1"] == pytest.approx(metrics.f1_score(forged, marked))
    assert found["pixel_auc"] == pytest.approx(metrics.roc_auc_score(forged, p.ravel()))


def test_the_threshold_of_a_release_is_reached_by_what_equals_it():
    assert cell_figures([[0.3, 0.0]], [[1.0, 0.0]], 0.3)["iou"] == 1
    assert cell_figures([[0.3, 0.0]], [[1.0, 0.0]])["iou"] == 0


def test_a_mean_is_over_pictures_of_whatever_size():
    large, small = np.ones((4, 4)), np.zeros((1, 1))
    found, _ = map_figures([large, small], [np.zeros((4, 4)), small], [True, True])
    assert found["l1"] == 0.5


def test_a_real_picture_is_marked_by_more_than_two_cells_in_a_hundred():
    two, three = np.zeros((10, 10)), np.zeros((10, 10))
    two[0, :2], three[0, :3] = 0.5, 0.5
    for threshold, share in ((0.5, 0.5), (0.6, 0)):
        found, _ = map_figures([two, three], [two * 0, two * 0], [False, False], threshold)
        assert found["reals_marked"] == share


def test_a_picture_without_a_forged_cell_is_in_no_figure_of_overlap():
    alone, _ = map_figures([[[0.9]]], [[[0.05]]], [True])
    beside, _ = map_figures([[[0.9]], [[0.9, 0.0]]], [[[0.05]], [[1.0, 0.0]]], [True, True])
    for name in ("iou", "f1", "pixel_auc"):
        assert math.isnan(alone[name])
        assert beside[name] == 1
    assert "pixel_auc" not in cell_figures([[0.9]], [[1.0]]), "no other cell to tell it from"
    nothing, _ = map_figures([], [], [])
    assert math.isnan(nothing["agree_0.1"])


def test_the_empty_map_is_always_beside_with_all_its_figures():
    half = np.array([[1.0, 0.0]])
    found, zeros = map_figures([half, half * 0], [half, half * 0], [True, False])
    assert set(zeros) == set(found)
    assert set(zeros) == {
        *("agree_0.1", "agree_0.2", "close_0.01", "close_0.05", "l1", "iou", "f1", "pixel_auc"),
        *("agree_0.1_forged", "agree_0.2_forged", "close_0.01_forged", "close_0.05_forged", "l1_forged"),
        "reals_marked",
    }
    assert (found["agree_0.1"], found["iou"], found["pixel_auc"], found["reals_marked"]) == (1, 1, 1, 0)
    assert (zeros["agree_0.1"], zeros["agree_0.1_forged"]) == (0.75, 0.5)
    assert (zeros["l1"], zeros["l1_forged"], zeros["iou"], zeros["pixel_auc"]) == (0.25, 0.5, 0, 0.5)


def test_a_false_mark_on_a_real_picture_costs_agreement_but_no_overlap():
    half = np.array([[1.0, 0.0]])
    found, _ = map_figures([half, half], [half, half * 0], [True, False])
    assert (found["agree_0.1"], found["agree_0.1_forged"], found["iou"]) == (0.75, 1, 1)
    assert found["reals_marked"] == 1


PROBABILITY = [[0.6, 0.3, 0.1], [0.4, 0.35, 0.25], [0.2, 0.7, 0.1], [0.45, 0.3, 0.25], [0.1, 0.2, 0.7]]
Y = [0, 0, 1, 1, 2]


@st.composite
def answers(draw):
    """Probabilities with many ties, and classes of which some may be absent."""
    k, n = draw(st.integers(2, 5)), draw(st.integers(2, 25))
    weights = draw(st.lists(st.lists(st.integers(1, 4), min_size=k, max_size=k), min_size=n, max_size=n))
    classes = draw(st.lists(st.integers(0, k - 1), min_size=n, max_size=n))
    p = np.array(weights, float)
    return p / p.sum(1, keepdims=True), np.array(classes)


def test_the_figures_of_five_pictures_worked_by_hand():
    assert image_figures(PROBABILITY, Y) == {
        "acc": pytest.approx((1 + 0.5 + 1) / 3),
        # f is .4 .6 | .8 .55 .9: of the six pairs, .55 against .6 alone is wrong.
        "auc": pytest.approx(5 / 6),
        "auc_2": pytest.approx(5 / 6),
        # Class 0: .6 .4 over .2 .45 .1; class 1: .7 .3 over .3 .35 .2; class 2: .7 over all.
        "map_ovr": pytest.approx((5 / 6 + 4.5 / 6 + 1) / 3),
        # Class 0: .6 first, .4 third; class 1: .7 first, .3 third beside another .3; class 2: .7 first.
        "mean_ap": pytest.approx(np.mean([(1 + 2 / 3) / 2, (1 + 2 / 4) / 2, 1])),
        "acc_2": pytest.approx((1 + 2 / 3) / 2),
        "acc_2_sum": pytest.approx((0.5 + 1) / 2),
    }


@given(answers())
def test_areas_and_accuracies_are_those_of_scikit_learn(answer):
    p, y = answer
    found, forged, there = image_figures(p, y), y > 0, np.unique(y)
    said = np.where(np.isin(p.argmax(1), y), p.argmax(1), -1)
    assert found["acc"] == pytest.approx(np.mean([float((said[y == c] == c).mean()) for c in there]))
    if forged.all() or not forged.any():
        assert math.isnan(found["auc"])
        return
    assert found["auc"] == found["auc_2"] == pytest.approx(metrics.roc_auc_score(forged, 1 - p[:, 0]))
    areas = [metrics.roc_auc_score(y == c, p[:, c]) for c in there]
    precisions = [metrics.average_precision_score(y == c, p[:, c]) for c in there]
    assert found["map_ovr"] == pytest.approx(np.mean(areas))
    assert found["mean_ap"] == pytest.approx(np.mean(precisions))
    assert found["acc_2"] == pytest.approx(metrics.balanced_accuracy_score(forged, p.argmax(1) > 0))
    assert found["acc_2_sum"] == pytest.approx(metrics.balanced_accuracy_score(forged, 1 - p[:, 0] >= 0.5))


def test_a_class_that_no_item_is_of_is_left_out_and_named():
    wider = np.c_[np.array(PROBABILITY) * 0.99, np.full(5, 0.01)]
    assert absent(wider, Y) == (3,)
    for name in ("acc", "map_ovr", "mean_ap"):
        assert image_figures(wider, Y)[name] == pytest.approx(image_figures(PROBABILITY, Y)[name])


def test_summing_forged_classes_tells_what_the_likeliest_class_does_not():
    found = image_figures([[0.4, 0.3, 0.3], [0.6, 0.2, 0.2]], [1, 0])
    assert (found["acc_2"], found["acc_2_sum"]) == (0.5, 1)


def test_one_class_alone_or_nothing_at_all_is_no_number():
    for p, y in ([[0.6, 0.4]], [0]), (np.zeros((0, 2)), np.zeros(0, int)):
        found = image_figures(p, y)
        assert all(math.isnan(found[name]) for name in ("auc", "map_ovr", "mean_ap"))
    assert math.isnan(image_figures(np.zeros((0, 2)), np.zeros(0, int))["acc"])


def test_what_is_not_finite_has_no_figure():
    for figures in (image_figures, cell_figures):
        with pytest.raises(ValueError, match="not a finite"):
            figures([[math.nan, 0.5], [0.5, 0.5]], [0, 1])
    with pytest.raises(ValueError, match="not a finite"):
        cell_figures([[0.5]], [[math.inf]])


# Which frames a network on videos is shown, and the video task from files to figures.
RECIPE = PAPER["video"]
PX, FRAMES = 48, 12


def test_the_middle_clip_is_16_frames_at_a_stride_of_4_about_the_middle():
    assert middle(101, RECIPE).tolist() == list(range(20, 81, 4))


def test_a_short_video_goes_round():
    assert middle(10, RECIPE).tolist() == [4 * number % 10 for number in range(16)]
    assert by_chance(10, RECIPE, np.random.default_rng(0)).tolist() == middle(10, RECIPE).tolist()


@given(frames=st.integers(1, 500), seed=st.integers(0, 9))
def test_clips_lie_in_the_video_and_cover_it(frames, seed):
    clips = [by_chance(frames, RECIPE, np.random.default_rng(seed)), middle(frames, RECIPE)]
    clips += (covered := covering(frames, RECIPE))
    clips.append(in_segments(frames, RECIPE, np.random.default_rng(seed)))
    assert all(len(clip) == 16 and 0 <= clip.min() <= clip.max() < frames for clip in clips)
    assert covered[0][0] == 0
    if frames > 61:
        assert covered[-1][-1] == frames - 1
        assert all(later[0] - earlier[0] <= 61 for earlier, later in itertools.pairwise(covered))


@pytest.mark.parametrize("every", [1, 4, 0])
def test_frames_change_places_within_every_so_many_or_all(every, tmp_path):
    for number, path in enumerate(pictures := tuple(tmp_path / f"{number}.png" for number in range(16))):
        Image.new("RGB", (32, 32), (number, number, number)).save(path)
    sample = Sample(Entry(tmp_path, 1, "made up", "group", "train", pictures=pictures), frames=16)
    rng, usual = np.random.default_rng(0), Choices.usual("video", "x3d_m", synthetic=True)
    args = sample, replace(usual, shuffled=every), replace(SMALL["video"], px=32, frames=16, stride=1), False
    for order in (view[:, 0, 0, 0].tolist() for view in (clips_of(*args)[0], training_clip(*args, rng))):
        assert sorted(order) == list(range(16))
        far = max(abs(number - place) for place, number in enumerate(order))
        assert far == 0 if every == 1 else 0 < far < 4 if every else far > 3
    assert (clips_of(*args) == clips_of(*args)).all()


def test_of_a_video_every_thirtieth_frame_is_a_picture(tmp_path):
    levels = np.broadcast_to(7 * np.arange(35, dtype=np.uint8)[:, None, None, None], (35, 32, 32, 3))
    (path := tmp_path / "a.mp4").write_bytes(to_h264(levels.copy(), 12, "mp4"))
    samples = look_at([Entry(path, 1, "made up", "group", "test")], "native", tmp_path, Tally(), max)
    assert [round(sample.pixels().mean() / 7) for sample in samples] == [0, 30]


def test_segments_give_a_frame_each():
    assert in_segments(30, replace(RECIPE, frames=3)).tolist() == [5, 15, 25]


@pytest.fixture
def videos(tmp_path):
    """Reals and one family, the forgeries noisy; of the training one says more frames than it has."""
    rng = np.random.default_rng(0)
    root = tmp_path / "data"
    for part, folder in (("Training", "train_video_release"), ("Validation", "val_video_release")):
        lines = []
        for directory in (3, 16):
            for number in range(4):
                path = f"{folder}/{directory}/{part[0]}{number}{directory}/video.mp4"
                noise = rng.normal(128, 60 if directory == 3 else 2, (FRAMES, PX, PX, 3))
                (place := root / part / "video" / path).parent.mkdir(parents=True)
                place.write_bytes(to_h264(noise.clip(0, 255).astype(np.uint8), 12, "mp4"))
                end = 99 if (part, directory, number) == ("Training", 3, 0) else FRAMES
                stretches = f"1 {path} 0 {end} {int(directory == 3)}"
                lines.append(f"{stretches} {' '.join(map(str, classes_of(directory)))}")
        (root / part / "video_list.txt").write_text("\n".join(lines) + "\n")
    return root


@pytest.fixture
def measured(videos, tmp_path, run_task):
    few = {"augmentation": "weak", "px": 32, "batch": 4, "steps": 20, "rate": 0.05}
    choices = Choices("video", "frames:test_resnet", synthetic=False, input="native", **few)

    def go(**change):
        (run,) = run_task(replace(choices, **change), videos, tmp_path / "run")
        return run

    return go


@pytest.mark.slow
@pytest.mark.parametrize(("model", "crops"), [("frames:test_resnet", "multi"), ("tsn:test_resnet", "single")])
def test_videos_are_told_apart(measured, model, crops):
    run = measured(model=model, crops=crops)
    assert run.outcome.figures["auc"].n == 8
    assert (run.outcome.figures["auc"].value or 0) > 0.9
    assert run.outcome.about["trained_on"] == 7
    assert [note for note in run.outcome.notes if "videos are shorter than their lists say" in note]


@pytest.mark.slow
def test_a_video_that_cannot_be_decoded_is_left_out_and_counted(videos, measured):
    broken = next((videos / "Validation").rglob("*.mp4"))
    broken.write_bytes(broken.read_bytes()[:40])
    run = measured(steps=1)
    assert run.outcome.about["tested_on"] == 7
    assert [note for note in run.outcome.notes if "cannot be decoded" in note and str(broken) in note]


def test_rise_and_falls_come_at_the_same_shares_of_fewer_steps():
    paper, small = PAPER["video"], SMALL["video"]
    assert [paper.rate_at(step) for step in (0, 500, 20_000, 30_000, 40_000, 45_000)] == pytest.approx(
        [1e-3, 0.02, 0.01, 0.005, 0.0025, 0.00125]
    )
    image = PAPER["image"]
    assert image.rate_at(1000) == image.rate
    assert image.rate_at(99_999) == pytest.approx(image.rate / 64)
    at = (0.0, 0.39, 0.4, 0.61, 0.95)
    assert [small.rate_at(round(share * small.steps)) for share in at] == pytest.approx(
        [paper.rate_at(round(share * paper.steps)) for share in at]
    )

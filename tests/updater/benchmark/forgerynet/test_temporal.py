"""The temporal task: stretches are found in videos of the layout, told by family, and with one left out."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from detector.features.cell_traces import CELL_WIDTH
from updater.benchmark.forgerynet import temporal as module
from updater.benchmark.forgerynet.choices import OWN, Choices, Job
from updater.benchmark.forgerynet.temporal import PredictedVideo, by_family, figures, videos
from updater.benchmark.report.outcome import values
from updater.benchmark.report.table import grids
from updater.benchmark.temporal import bmn
from updater.benchmark.temporal.bsn import _weights
from updater.benchmark.temporal.method import by_segments
from updater.benchmark.temporal.methods import METHODS, segments_of
from updater.data.layouts.entries import Entry, Extent, LayoutError
from updater.data.layouts.listed import Tally
from updater.distortions.clip_writing import to_h264
from updater.scan.clips import make_clip

FRAMES, SIDE = 48, 64
FIGURES = {"ap_0.5", "ap_0.75", "ap_0.9", "ap", "ar_2", "ar_5", "ar_share_2", "ar_share_5", "frame_auc"}


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """Videos of noise, of which forged stretches are smoother or flatter; the first four unlabelled."""
    root, rng = tmp_path_factory.mktemp("tree"), np.random.default_rng(0)
    for part, top, count in (("Training", "train_video_release", 18), ("Validation", "val_video_release", 9)):
        rows = []
        for number in range(count):
            frames = rng.normal(128, rng.uniform(15, 40), (FRAMES, SIDE, SIDE, 3))
            directory = (17, 3, 7)[number % 3]
            stretches = [(4, FRAMES - 4, 0)]
            if directory != 17:
                first = int(rng.integers(10, 20))
                forged = frames[first : first + 15]
                if directory == 3:
                    forged[:, 1::2] = forged[:, ::2]
                else:
                    forged[:] = 128 + 0.2 * (forged - 128)
                end = first + 15
                stretches = [(4, first - 4, 0), (first, 15, 1), (end, FRAMES - end, 0)]
            group = f"{count}{number:030x}"
            listed = f"{top}/{directory}/{group}/{group}/video.mp4"
            path = root / part / "video" / listed
            path.parent.mkdir(parents=True)
            path.write_bytes(to_h264(np.clip(frames, 0, 255).astype(np.uint8), 12, "mp4"))
            told = " ".join(str(one) for stretch in stretches for one in stretch)
            labels = {17: "0 0 0", 3: "1 2 3", 7: "1 1 7"}[directory]
            rows.append(f"{len(stretches)} {listed} {told} {labels}\n")
        (root / part / "video_list.txt").write_text("".join(rows))
    return root


@pytest.fixture
def measure(tree, tmp_path, run_task):
    def go(place=tree, **choices):
        chosen = Choices("temporal", **{"model": "convolutions", "synthetic": False, **choices})
        (run,) = run_task(chosen, place, tmp_path / "run")
        whole = {row[0] for row in grids([run])[0].rows}
        assert not run.outcome.figures or whole >= FIGURES, "all columns of the paper are printed"
        return run.outcome

    return go


@pytest.mark.slow
def test_stretches_are_found_and_told_by_family(measure):
    outcome = measure()
    assert outcome.figures.keys() >= FIGURES
    assert (outcome.figures["ap_0.5"].value or 0) > 0.5
    assert outcome.figures["ap"].n == 9
    assert set(outcome.families) == {"DeepFakes", "Talking-head Video"}
    assert outcome.families["DeepFakes"]["ap"].n == 6
    assert outcome.about["stretches"] == 6


@pytest.mark.slow
def test_cross_leaves_each_family_out_in_turn(measure):
    assert {name: set(of) for name, of in measure(model="frames", protocol="cross").table.items()} == {
        "all but DeepFakes": {"DeepFakes"},
        "all but Talking-head Video": {"Talking-head Video"},
    }


@pytest.mark.slow
def test_a_group_may_be_trained_on_alone(measure):
    outcome = measure(model="frames", train_on=("remained",))
    assert outcome.about["trained_on"] == 12
    assert set(outcome.families) == {"DeepFakes", "Talking-head Video"}


FAST = sorted(METHODS.keys() - {"bmn"})


def clips_of(seed, count):
    rng = np.random.default_rng(seed)
    made = []
    for number in range(count):
        frames = int(rng.integers(60, 90))
        features = rng.normal(size=(frames, 6)) + rng.normal(0, 0.3, 6)
        stretch = []
        if number % 2:
            first, length = int(rng.integers(0, frames - 30)), int(rng.integers(20, 30))
            features[first : first + length, :3] += 3
            stretch = [(first, first + length)]
        cells = rng.normal(size=(frames, CELL_WIDTH))
        made.append(make_clip(np.concatenate([features, cells], 1).astype(np.float32), stretch))
    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", FAST)
def test_a_method_finds_stretches_that_stand_out(name):
    localize = METHODS[name](clips_of(0, 60), 0, lambda done, total: None)
    told = []
    for clip in clips_of(1, 20):
        answer = localize(clip.features)
        assert answer.frame_scores.shape == (len(clip.features),)
        assert len(answer.segments) <= 10
        assert (np.diff(answer.segments[:, 2]) <= 1e-12).all()
        told.append(PredictedVideo("made up" if len(clip.segments) else "real", clip, answer))
    found = figures(told)
    assert found["ap_0.5"] > 0.5
    assert found["frame_auc"] > 0.8
    assert by_family(told) == {"made up": values(found, len(told))}


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_method_refuses_clips_without_a_forged_stretch(name):
    with pytest.raises(ValueError, match="training needs"):
        METHODS[name](clips_of(0, 1), 0, lambda done, total: None)


def test_runs_of_the_frame_method_are_counted_once_and_scored_by_their_mean():
    scores = np.zeros(40)
    scores[5:15] = 0.5
    scores[17:30] = 0.3  # a gap of two: closed from a tolerance of 3 on
    whole = pytest.approx(scores[5:30].mean())
    assert segments_of(scores).tolist() == [[5, 15, 0.5], [5, 30, whole], [17, 30, pytest.approx(0.3)]]
    assert [len(segments_of(np.full(30, score))) for score in (0.249, 0.25)] == [0, 1]


def test_segments_score_the_frames_that_they_hold():
    scores = by_segments(np.array([[2, 5, 0.5], [4, 8.5, 0.9], [-1, 1, 0.2]]), 10)
    assert scores.tolist() == [0.2, 0, 0.5, 0.5, 0.9, 0.9, 0.9, 0.9, 0.9, 0]


def test_a_clip_of_any_length_comes_onto_the_grid():
    clips = clips_of(0, 4)
    rescaling = bmn.Rescaling(clips)
    for frames in (1, 5, 9, 300):
        raw = np.random.default_rng(0).normal(size=(frames, 6 + CELL_WIDTH)).astype(np.float32)
        assert rescaling.features(raw).shape == (12, bmn.POINTS)
    assert np.allclose(rescaling.truths[0] * len(clips[1].features), clips[1].segments)


def test_a_loss_without_positives_is_a_number():
    said = torch.full((2, 7), 0.4)
    for truth in (torch.zeros(2, 7), torch.ones(2, 7)):
        assert torch.isfinite(bmn.bce(said, truth))
    maps = torch.full((1, 2, bmn.POINTS - 1, bmn.POINTS - 1), 0.4)
    assert torch.isfinite(bmn.map_loss(maps, torch.zeros(1, bmn.POINTS - 1, bmn.POINTS - 1)))


def test_of_bsns_overlaps_the_middle_class_is_not_empty_and_the_low_one_does_not_take_all():
    weights = _weights(torch.tensor([0.9] * 4 + [0.4] * 4 + [0.1] * 32))
    assert weights[4:8].sum() == pytest.approx(4)
    assert weights[8:].sum() == pytest.approx(8)


def test_bmn_proposes_segments_that_end_with_the_video():
    edges = np.full((2, bmn.POINTS), 0.01)
    edges[0, 30] = edges[1, bmn.POINTS - 1] = 0.9
    found = bmn.proposals(np.full((2, bmn.POINTS - 1, bmn.POINTS - 1), 0.5), edges)
    assert [30 / (bmn.POINTS - 1), 1.0, pytest.approx(0.9 * 0.9 * 0.25)] in found.tolist()


def test_bmn_samples_a_ramp_along_each_segment():
    ramp = torch.arange(bmn.POINTS, dtype=torch.float32) @ bmn.sampling()
    along = ramp.reshape(32, bmn.POINTS - 1, bmn.POINTS - 1)
    # From point 20 to 30, half of it more on both sides: 15 to 35.
    assert np.allclose(along[:, 9, 20].numpy(), np.linspace(15, 35, 96).reshape(32, 3).mean(1), atol=1e-4)
    assert along[:, 40, 20].abs().max() == 0, "a segment beyond the clip is nothing"


def test_bmn_has_the_papers_sizes():
    network = bmn.BoundaryMatching(400, (256, 128, 512))
    assert sum(parameter.numel() for parameter in network.sum_up.parameters()) == 128 * 32 * 512 + 512
    maps, edges = network(torch.zeros(1, 400, bmn.POINTS))
    assert maps.shape == (1, 2, bmn.POINTS - 1, bmn.POINTS - 1)
    assert edges.shape == (1, 2, bmn.POINTS)


@pytest.fixture
def file(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "video.mp4"
    path.write_bytes(to_h264(rng.integers(0, 256, (30, 64, 64, 3), np.uint8), 30, "mp4"))
    return path


def entry(path, annotated, *segments):
    return Entry(path, int(bool(segments)), "made up", "group", "train", segments, annotated)


def test_only_annotated_frames_are_seen_and_segments_count_from_the_first_of_them(file, tmp_path):
    whole, part = entry(file, Extent(0, 30)), entry(file, Extent(5, 25), Extent(9, 20))
    seen = videos([whole, part], tmp_path / "cache", Tally())
    assert [len(one.clip.features) for one in seen] == [30, 20]
    assert np.allclose(seen[1].clip.features, seen[0].clip.features[5:25], atol=1e-3)
    assert seen[1].clip.segments.tolist() == [[4, 15]]


def test_a_file_is_read_once(file, tmp_path, monkeypatch):
    listed = [entry(file, Extent(0, 30), Extent(0, 9))]
    (first,) = videos(listed, tmp_path / "cache", Tally())
    monkeypatch.setattr(module, "frame_features", None)
    (again,) = videos(listed, tmp_path / "cache", Tally())
    assert np.array_equal(first.clip.features, again.clip.features)


def test_what_cannot_be_used_is_counted(file, tmp_path):
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"no video")
    tally = Tally()
    listed = [
        entry(file, None),
        entry(broken, Extent(0, 9)),
        entry(tmp_path / "missing.mp4", Extent(0, 9)),
        entry(file, Extent(0, 31)),
        entry(file, Extent(4, 5)),
    ]
    assert videos(listed, tmp_path / "cache", tally) == []
    assert [note.partition(" (first")[0] for note in tally.notes()] == [
        "1 videos are labelled as a whole, and left out of the temporal task",
        "1 videos cannot be decoded, or change their size, and are left out",
        "1 videos cannot be read, and are left out",
        "1 videos have fewer frames than their list tells of, and are left out",
        "1 videos have one annotated frame, and are left out",
    ]


def job_of(folder, model, *train):
    choices = replace(Choices.usual("temporal", model, synthetic=True), px=32, batch=2, steps=1)
    return Job(train, (), (), OWN, choices, 0, torch.device("cpu"), folder, folder)


def test_a_part_without_stretches_is_refused(file, tmp_path):
    with pytest.raises(LayoutError, match="train has no video with a forged stretch"):
        module.measure(job_of(tmp_path, "frames", entry(file, Extent(0, 30))))


def test_a_network_that_tells_clips_gives_each_frame_its_features(file, tmp_path):
    both = (entry(file, Extent(0, 30)), 30), (entry(file, Extent(5, 25), Extent(9, 20)), 20)
    listed = [module.Video(of, make_clip(np.zeros((frames, 1), np.float32), [])) for of, frames in both]
    seen = module.see_by("x3d_m", job_of(tmp_path, "bsn:x3d_m"), {"train": listed})["train"]
    assert [video.clip.features.shape for video in seen] == [(30, 2048 + CELL_WIDTH), (20, 2048 + CELL_WIDTH)]
    changes = np.flatnonzero(np.diff(seen[0].clip.features, axis=0).any(1))
    assert (np.diff(changes) >= 3).all(), "clips are four frames apart"

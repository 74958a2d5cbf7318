import io
import time

import numpy as np
import pytest
import torch
from PIL import Image

from deploy.bench import model_cost
from deploy.bench.latency import summary
from deploy.bench.rate import median_interval
from deploy.bench.swap_dip import dip
from detector.model.export import export
from detector.model.graph import DetectorGraph
from detector.model.network import Network
from detector.release.contract import crops_and_pooling
from detector.release.manifest import Architecture, GateParameters, Term
from detector.serving.session import Session
from ingest.records import CropPlan
from updater.benchmark.synthetic.stream import MediaSample


@pytest.mark.slow
def test_what_takes_three_times_as_long_is_seen_as_that_however_the_machine_drifts():
    rows = np.random.default_rng(0).random(100_000)

    def times(count):
        for _ in range(count):
            np.sort(rows)

    pairs = model_cost.in_turn(lambda: times(3), lambda: times(1))
    assert 2 < np.median([three / one for three, one in pairs]) < 4.5


@pytest.mark.slow
def test_time_that_is_waited_is_no_cost():
    (slept, _), *_ = model_cost.in_turn(lambda: time.sleep(0.002), lambda: None)
    assert slept < 0.002


def grey(width, height):
    file = io.BytesIO()
    Image.new("RGB", (width, height), (90, 90, 90)).save(file, "PNG")
    return MediaSample(file.getvalue(), "real", "grey", "grey.png")


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    torch.manual_seed(0)
    network = Network(Architecture(backbone="lcnet_050", crop_px=64, forensic=False), 2).eval()
    unit = Term(median=0, scale=1, weight=1)
    gate = GateParameters(terms={"energy": unit}, clip=1, unknown_threshold=9, fake_threshold=1)
    path = tmp_path_factory.mktemp("onnx") / "detector.onnx"
    plan = CropPlan(crop_px=64, face_patches=0)
    return Session(path, export(DetectorGraph(network, gate, None), crops_and_pooling(plan), path), threads=1)


@pytest.mark.slow
def test_a_small_network_on_six_crops_costs_less_than_a_resnet18(session, tmp_path, monkeypatch):
    monkeypatch.setattr(model_cost, "_PAIRS", 9)
    found = model_cost.model_cost(session, [grey(64, 64), grey(192, 128)], tmp_path)
    assert found.low <= found.ratio <= found.high
    assert 0 < found.ratio < 1
    assert found.ratio == pytest.approx(found.release_ms / found.resnet18_ms, rel=0.5)
    assert (found.crops, found.pairs) == (6, 9)


@pytest.mark.slow
def test_without_an_image_of_six_crops_there_is_no_such_cost(session, tmp_path):
    with pytest.raises(ValueError, match="no image of 6 crops among 1"):
        model_cost.model_cost(session, [grey(64, 64)], tmp_path)


def test_the_slowest_hundredth_of_all_rounds_is_held_against_a_picture_alone():
    quick, slow = [20.0] * 200, [20.0] * 190 + [90.0] * 10
    found = summary([quick, slow], [8.0, 12.0], per_second=5)
    assert (found.items, found.p50_ms, found.p99_ms, found.p99s_ms) == (400, 20, 90, [20, 90])
    assert (found.alone_ms, found.ratio) == (10, pytest.approx(9))


@pytest.mark.parametrize("count", [6, 12, 25])
def test_the_interval_holds_the_median_in_19_of_20_samples_or_more(count):
    draws = np.random.default_rng(0).exponential(size=(4000, count))
    held = [low <= np.log(2) <= high for low, high in map(median_interval, draws.tolist())]
    assert 0.945 <= np.mean(held) < 1


def test_the_interval_of_few_values_is_their_range():
    assert median_interval([3, 1, 2]) == (1, 3)


def test_a_steady_stream_has_no_dip():
    found = dip(list(np.arange(0, 60, 0.05)), 10, 40, per_second=20)
    assert (found.second, found.five, found.lasts_s) == (
        pytest.approx(0, abs=0.06),
        pytest.approx(0, abs=0.02),
        0,
    )


def test_a_stall_is_told_by_its_depth_and_by_how_long_it_lasts():
    due = np.arange(0, 60, 0.05)
    stalled = np.where((due >= 20) & (due < 22), 22, due)  # nothing for two seconds, then all of it
    found = dip(list(stalled), 10, 40, per_second=20)
    assert found.second == 1
    assert found.five == pytest.approx(0.4, abs=0.02)
    assert found.lasts_s == pytest.approx(2.9, abs=0.15)


def test_a_stall_outside_the_time_that_is_looked_at_does_not_count():
    due = np.arange(0, 60, 0.05)
    found = dip(list(np.where((due >= 45) & (due < 50), 50, due)), 10, 40, per_second=20)
    assert found.lasts_s == 0

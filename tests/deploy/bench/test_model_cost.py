import io
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from deploy.bench import model_cost
from detector.model.export import export
from detector.model.graph import DetectorGraph
from detector.model.network import Network
from detector.release.contract import crops_and_pooling
from detector.release.manifest import Architecture, GateParameters, Term
from detector.serving.session import Session
from ingest.records import CropPlan
from updater.benchmark.synthetic.stream import MediaSample

pytestmark = pytest.mark.slow


def test_what_takes_three_times_as_long_is_seen_as_that_however_the_machine_drifts() -> None:
    rows = np.random.default_rng(0).random(100_000)

    def times(count: int) -> None:
        for _ in range(count):
            np.sort(rows)

    pairs = model_cost.in_turn(lambda: times(3), lambda: times(1))
    assert 2 < np.median([three / one for three, one in pairs]) < 4.5


def test_time_that_is_waited_is_no_cost() -> None:
    (slept, _), *_ = model_cost.in_turn(lambda: time.sleep(0.002), lambda: None)
    assert slept < 0.002


def grey(width: int, height: int) -> MediaSample:
    file = io.BytesIO()
    Image.new("RGB", (width, height), (90, 90, 90)).save(file, "PNG")
    return MediaSample(file.getvalue(), "real", "grey", "grey.png")


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Session:
    torch.manual_seed(0)
    network = Network(Architecture(backbone="lcnet_050", crop_px=64, forensic=False), 2).eval()
    unit = Term(median=0, scale=1, weight=1)
    gate = GateParameters(terms={"energy": unit}, clip=1, unknown_threshold=9, fake_threshold=1)
    path = tmp_path_factory.mktemp("onnx") / "detector.onnx"
    plan = CropPlan(crop_px=64, face_patches=0)
    return Session(path, export(DetectorGraph(network, gate, None), crops_and_pooling(plan), path), threads=1)


def test_a_small_network_on_six_crops_costs_less_than_a_resnet18(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_cost, "_PAIRS", 9)
    found = model_cost.model_cost(session, [grey(64, 64), grey(192, 128)], tmp_path)
    assert found.low <= found.ratio <= found.high
    assert 0 < found.ratio < 1
    assert found.ratio == pytest.approx(found.release_ms / found.resnet18_ms, rel=0.5)
    assert (found.crops, found.pairs) == (6, 9)


def test_without_an_image_of_six_crops_there_is_no_such_cost(session: Session, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no image of 6 crops among 1"):
        model_cost.model_cost(session, [grey(64, 64)], tmp_path)

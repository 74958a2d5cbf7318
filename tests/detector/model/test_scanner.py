"""The head over time, where a clip is its own reference; and the graph of it, in parts or whole."""

import numpy as np
import pytest
import torch

from detector.features.cell_traces import CELL_WIDTH, FrameFeatures, paired_edges
from detector.model.export import ExportError, export_proven, run
from detector.model.scanner import Scanner, ScannerGraph, median, over_time
from detector.release.crop_graphs import FRAME_SCORE, ScanContract
from detector.release.tensors import TensorsError
from detector.serving.session import Session

WIDTH = 6 + CELL_WIDTH


def a_scanner():
    torch.manual_seed(0)
    return Scanner(WIDTH).eval()


def test_the_median_is_numpys_for_clips_of_every_length():
    for frames in (1, 2, 5, 8):
        features = torch.randn(frames, 3)
        assert torch.allclose(median(features)[0], torch.from_numpy(np.median(features.numpy(), 0)))


def test_a_frame_is_seen_beside_its_own_clip():
    features = torch.randn(20, WIDTH)
    seen = over_time(features)
    elsewhere = features + 5 * torch.randn(1, WIDTH)
    assert torch.allclose(seen, over_time(elsewhere), atol=1e-4)
    assert torch.allclose(seen[:, 6:], paired_edges(features[:, 6:]))


def test_a_clip_says_the_same_beside_a_longer_one():
    scanner = a_scanner()
    short, long = torch.randn(9, WIDTH), torch.randn(31, WIDTH)
    inputs, inside = torch.zeros(2, 31, len(scanner.mean)), torch.zeros(2, 31)
    inputs[0, :9], inputs[1] = (scanner.standard(over_time(clip)) for clip in (short, long))
    inside[0, :9] = inside[1] = 1
    scores = torch.stack([member(inputs, inside).sigmoid() for member in scanner.members]).mean(0)
    assert torch.allclose(scores[0, :9], scanner(short)["frame_score"], atol=1e-6)
    assert torch.allclose(scores[1], scanner(long)["frame_score"], atol=1e-6)


PX = 64


FEATURES = FrameFeatures(PX)


DECLARED = ScanContract(crop_px=PX, threshold=0.3, reals_told=0.05, reals=40)


def _clip(frames, seed=0):
    """A smooth scene under noise, which is stronger in some frames."""
    rng = np.random.default_rng(seed)
    scene = rng.integers(0, 256, (PX // 8, PX // 8, 3)).repeat(8, 0).repeat(8, 1)
    levels = rng.choice([2.0, 8.0], (frames, 1, 1, 1))
    return {"crops": np.clip(scene + levels * rng.normal(size=(frames, PX, PX, 3)), 0, 255).astype(np.uint8)}


@pytest.fixture(scope="module")
def scanner():
    torch.manual_seed(0)
    made = Scanner(FEATURES.width).eval()
    made.standardise(over_time(_features(_clip(12))))
    for member in made.members:
        member.end.weight.data *= 8
    return made


@pytest.fixture(scope="module")
def exported(scanner, tmp_path_factory):
    path = tmp_path_factory.mktemp("scanner") / "scanner.onnx"
    return path, export_proven(ScannerGraph(scanner, PX), DECLARED, path, [_clip(3), _clip(9)])


def _features(clip):
    with torch.inference_mode():
        return FEATURES(torch.from_numpy(clip["crops"]).permute(0, 3, 1, 2).float())


@pytest.mark.slow
def test_clips_of_any_length_are_scored_as_torch_scores_their_features(scanner, exported):
    path, contract = exported
    assert contract.export_difference < 1e-4
    assert contract.features == FEATURES.width
    session = Session(path, contract, threads=1)
    for frames in (1, 2, 4, 5, 96):
        clip = _clip(frames, seed=frames)
        answer = session.score(clip)
        with torch.inference_mode():
            wanted = scanner(_features(clip))["frame_score"].numpy()
        assert answer[FRAME_SCORE].shape == (frames,)
        assert contract.differences(answer, {FRAME_SCORE: wanted})[FRAME_SCORE] < 1e-4
    assert np.ptp(answer[FRAME_SCORE]) > 0.05


@pytest.mark.slow
def test_an_export_that_says_something_else_is_refused(scanner, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "detector.model.export.run",
        lambda graph, request: {name: value + 1 for name, value in run(graph, request).items()},
    )
    with pytest.raises(ExportError, match="frame_score differs by"):
        export_proven(ScannerGraph(scanner, PX), DECLARED, tmp_path / "x.onnx", [_clip(3), _clip(9)])


@pytest.mark.slow
def test_a_proof_needs_clips_of_several_lengths(scanner, tmp_path):
    with pytest.raises(ValueError, match="several sizes"):
        export_proven(ScannerGraph(scanner, PX), DECLARED, tmp_path / "x.onnx", [_clip(3), _clip(3)])


def test_a_scanner_of_other_features_is_refused():
    with pytest.raises(ValueError, match="a scanner of other features"):
        ScannerGraph(Scanner(6 + CELL_WIDTH), PX)


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong",
    [
        {"crops": np.zeros((2, 32, 32, 3), np.uint8)},
        {"crops": np.zeros((2, PX, PX, 3), np.float32)},
        {"crops": np.zeros((0, PX, PX, 3), np.uint8)},
        {"before": np.zeros((2, FEATURES.width), np.float32)},
    ],
)
def test_a_request_that_is_not_of_the_contract_is_refused_in_one_line(exported, wrong):
    path, contract = exported
    with pytest.raises(TensorsError) as refused:
        Session(path, contract, threads=1).score({**_clip(2), **wrong})
    assert "\n" not in str(refused.value)

"""The head over time: a clip is its own reference, and none depends on another; the graph says the same."""

from pathlib import Path

import numpy as np
import onnxruntime
import torch

from detector.features.cell_traces import CELL_WIDTH
from detector.features.paired_edges import paired_edges
from detector.model.export import run, write_onnx
from detector.model.scanner import Scanner, median, over_time
from detector.release.contract import ROWS, TensorSpec

WIDTH = 6 + CELL_WIDTH


def a_scanner() -> Scanner:
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


def test_the_exported_graph_says_the_same_of_clips_of_any_length(tmp_path: Path):
    scanner = a_scanner()
    path = tmp_path / "scanner.onnx"
    spec = TensorSpec(name="features", dtype="float32", shape=(ROWS, WIDTH))
    (output,) = write_onnx(scanner, [spec], path)
    assert (output.name, output.shape) == ("frame_score", (ROWS,))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for frames in (1, 2, 7, 40, 96):
        features = np.random.default_rng(frames).normal(size=(frames, WIDTH)).astype(np.float32)
        (found,) = session.run(None, {"features": features})
        assert np.allclose(found, run(scanner, {"features": features})["frame_score"], atol=1e-5)

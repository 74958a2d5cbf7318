"""The head over time: a clip is its own reference, and none depends on another; the graph says the same."""

from pathlib import Path

import numpy as np
import onnxruntime
import torch

from detector.contract import ROWS, TensorSpec
from detector.export import run, write_onnx
from detector.scanner import Scanner, beside_median


def a_scanner(features: int = 6) -> Scanner:
    torch.manual_seed(0)
    return Scanner(features).eval()


def test_the_median_is_numpys_for_clips_of_every_length():
    for frames in (1, 2, 5, 8):
        features = torch.randn(frames, 3)
        wanted = features - torch.from_numpy(np.median(features.numpy(), 0))
        assert torch.allclose(beside_median(features), torch.cat([features, wanted], 1))


def test_a_clip_says_the_same_beside_a_longer_one():
    scanner = a_scanner()
    short, long = torch.randn(9, 6), torch.randn(31, 6)
    inputs = torch.zeros(2, 31, 12)
    inputs[0, :9], inputs[1] = beside_median(short), beside_median(long)
    inside = torch.zeros(2, 31)
    inside[0, :9] = inside[1] = 1
    together = scanner.logits(inputs, inside).sigmoid()
    assert torch.allclose(together[0, :9], scanner(short)["frame_score"], atol=1e-6)
    assert torch.allclose(together[1], scanner(long)["frame_score"], atol=1e-6)


def test_the_exported_graph_says_the_same_of_clips_of_any_length(tmp_path: Path):
    scanner = a_scanner()
    path = tmp_path / "scanner.onnx"
    spec = TensorSpec(name="features", dtype="float32", shape=(ROWS, 6))
    (output,) = write_onnx(scanner, [spec], path)
    assert (output.name, output.shape) == ("frame_score", (ROWS,))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for frames in (1, 2, 7, 40, 96):
        features = np.random.default_rng(frames).normal(size=(frames, 6)).astype(np.float32)
        (found,) = session.run(None, {"features": features})
        assert np.allclose(found, run(scanner, {"features": features})["frame_score"], atol=1e-5)

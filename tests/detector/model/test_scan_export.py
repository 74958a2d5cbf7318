"""The scanner of a release: features and head in one graph, which says what torch says, in parts or whole."""

from pathlib import Path

import numpy as np
import pytest
import torch

from detector.features.cell_traces import CELL_WIDTH, FrameFeatures
from detector.model.export import ExportError
from detector.model.scan_export import export_scanner
from detector.model.scanner import Scanner, over_time
from detector.release.scan_contract import FRAME_SCORE, ScanContract, scan_difference
from detector.release.tensors import Request, TensorsError
from detector.serving.scan_session import ScanSession

MEASURED = {"threshold": 0.3, "reals_told": 0.05, "reals": 40}
PX = 64
FEATURES = FrameFeatures(PX)


def _clip(frames: int, seed: int = 0) -> Request:
    """A smooth scene under noise, which is stronger in some frames."""
    rng = np.random.default_rng(seed)
    scene = rng.integers(0, 256, (PX // 8, PX // 8, 3)).repeat(8, 0).repeat(8, 1)
    levels = rng.choice([2.0, 8.0], (frames, 1, 1, 1))
    return {"crops": np.clip(scene + levels * rng.normal(size=(frames, PX, PX, 3)), 0, 255).astype(np.uint8)}


@pytest.fixture(scope="module")
def scanner() -> Scanner:
    torch.manual_seed(0)
    made = Scanner(FEATURES.width).eval()
    made.standardise(over_time(_features(_clip(12))))
    for member in made.members:
        member.end.weight.data *= 8
    return made


@pytest.fixture(scope="module")
def exported(scanner: Scanner, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ScanContract]:
    path: Path = tmp_path_factory.mktemp("scanner") / "scanner.onnx"
    return path, export_scanner(scanner, PX, path, [_clip(3), _clip(9)], **MEASURED)


def _features(clip: Request) -> torch.Tensor:
    with torch.inference_mode():
        return FEATURES(torch.from_numpy(clip["crops"]).permute(0, 3, 1, 2).float())


def test_clips_of_any_length_are_scored_as_torch_scores_their_features(scanner, exported) -> None:
    path, contract = exported
    assert contract.export_difference < 1e-4
    session = ScanSession(path, contract, threads=1)
    for frames in (1, 2, 4, 5, 30):
        clip = _clip(frames, seed=frames)
        found = session.score(clip)
        with torch.inference_mode():
            wanted = scanner(_features(clip))["frame_score"].numpy()
        assert found[FRAME_SCORE].shape == (frames,)
        assert scan_difference(found, {FRAME_SCORE: wanted}) < 1e-4
    assert np.ptp(found[FRAME_SCORE]) > 0.05


def test_an_export_that_says_something_else_is_refused(scanner, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(
        "detector.model.scan_export.run",
        lambda graph, request: {FRAME_SCORE: np.full(len(request["crops"]), 2.0)},
    )
    with pytest.raises(ExportError, match="a frame differs by"):
        export_scanner(scanner, PX, tmp_path / "x.onnx", [_clip(3), _clip(9)], **MEASURED)


def test_a_proof_needs_clips_of_several_lengths(scanner, tmp_path) -> None:
    with pytest.raises(ValueError, match="several lengths"):
        export_scanner(scanner, PX, tmp_path / "x.onnx", [_clip(3), _clip(3)], **MEASURED)


def test_a_scanner_of_other_features_is_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match="a scanner of other features"):
        export_scanner(Scanner(6 + CELL_WIDTH), PX, tmp_path / "x.onnx", [_clip(3), _clip(9)], **MEASURED)


@pytest.mark.parametrize(
    "wrong",
    [
        {"crops": np.zeros((2, 32, 32, 3), np.uint8)},
        {"crops": np.zeros((2, PX, PX, 3), np.float32)},
        {"crops": np.zeros((0, PX, PX, 3), np.uint8)},
        {"before": np.zeros((2, FEATURES.width), np.float32)},
    ],
)
def test_a_request_that_is_not_of_the_contract_is_refused_in_one_line(exported, wrong) -> None:
    path, contract = exported
    with pytest.raises(TensorsError) as refused:
        ScanSession(path, contract, threads=1).score({**_clip(2), **wrong})
    assert "\n" not in str(refused.value)


def test_a_graph_of_other_names_is_refused(untrained_artifact, exported) -> None:
    with pytest.raises(TensorsError, match="its contract others"):
        ScanSession(untrained_artifact.folder / "detector.onnx", exported[1], threads=1)

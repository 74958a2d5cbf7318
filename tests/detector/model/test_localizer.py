"""The localizer: a cell is seen beside its own picture, and the exported graph says what torch says."""

import numpy as np
import pytest
import torch

from detector.model.export import ExportError, export_proven, run
from detector.model.localizer import Localizer, LocalizerGraph, Residuals, evidence, over_picture
from detector.release.crop_graphs import CELLS, MapContract
from detector.release.tensors import TensorsError
from detector.serving.session import Session

DECLARED = MapContract(crop_px=64, threshold=0.3, reals_marked=0.02, reals=50)


def _request(*counts, seed=0, px=64):
    rng = np.random.default_rng(seed)
    low = rng.integers(0, 256, (sum(counts), px // 8, px // 8, 3)).repeat(8, 1).repeat(8, 2)
    crops = np.clip(low + rng.normal(0, 4, low.shape), 0, 255).astype(np.uint8)
    return {"crops": crops, "of_picture": np.repeat(np.arange(len(counts)), counts).astype(np.int64)}


@pytest.fixture(scope="module")
def graph():
    torch.manual_seed(0)
    network = Localizer()
    # Statistics of batch norm that are not those of the beginning, as after a training.
    network.train()
    crops = torch.from_numpy(_request(8, seed=9)["crops"]).permute(0, 3, 1, 2).float()
    for _ in range(5):
        network(crops, torch.zeros(8, dtype=torch.int64))
    # Cells that differ, as a trained network says them.
    network.corrected.weight.data *= 60
    return LocalizerGraph(network, 0.5, 1.5, -0.5).eval()


@pytest.fixture(scope="module")
def exported(graph, tmp_path_factory):
    path = tmp_path_factory.mktemp("localizer") / "localizer.onnx"
    return path, export_proven(graph, DECLARED, path, [_request(3, 1), _request(1)])


def test_it_has_the_parameters_of_the_plan():
    assert sum(weight.numel() for weight in Localizer().parameters()) == 253_410


def test_the_exported_graph_maps_as_torch_does_for_any_crops_and_pictures(graph, exported):
    path, contract = exported
    assert 0 < contract.export_difference <= 2 / 255
    session = Session(path, contract, threads=1)
    for counts in ((1,), (5,), (2, 3, 4), (9, 1)):
        asked = _request(*counts, seed=sum(counts))
        answer = session.score(asked)
        assert answer[CELLS].shape == (sum(counts), 8, 8)
        assert contract.differences(answer, run(graph, asked))[CELLS] < 1e-4


def test_an_export_that_says_something_else_is_refused(graph, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "detector.model.export.run", lambda graph, request: {CELLS: run(graph, request)[CELLS] + 0.02}
    )
    with pytest.raises(ExportError, match=r"cells differs by 0\.02, allowed 0\.0039"):
        export_proven(graph, DECLARED, tmp_path / "x.onnx", [_request(3, 1), _request(1)])


@pytest.mark.parametrize("requests", [[_request(2, 1)], [_request(3), _request(1)]])
def test_a_proof_needs_several_sizes_and_pictures(graph, tmp_path, requests):
    with pytest.raises(ValueError, match="several"):
        export_proven(graph, DECLARED, tmp_path / "x.onnx", requests)


def test_a_graph_that_does_not_give_what_is_declared_is_refused(graph, tmp_path):
    with pytest.raises(ExportError, match=r"x\.onnx gives .*, declared is"):
        export_proven(_Halved(graph), DECLARED, tmp_path / "x.onnx", [_request(3, 1), _request(1)])


class _Halved(torch.nn.Module):
    def __init__(self, graph):
        super().__init__()
        self.graph = graph

    def forward(self, crops, of_picture):
        return {CELLS: self.graph(crops, of_picture)[CELLS][:, ::2]}


def test_other_pictures_of_a_request_change_nothing_and_other_crops_of_the_picture_do(exported):
    path, contract = exported
    session = Session(path, contract, threads=1)
    both = _request(3, 2)
    alone = {name: array[:3] for name, array in both.items()}
    assert np.allclose(session.score(both)[CELLS][:3], session.score(alone)[CELLS], atol=1e-5)
    fewer = {name: array[:2] for name, array in both.items()}
    assert np.abs(session.score(both)[CELLS][:2] - session.score(fewer)[CELLS]).max() > 1e-4


def test_the_order_of_crops_and_the_numbers_of_pictures_mean_nothing(exported):
    path, contract = exported
    session = Session(path, contract, threads=1)
    asked = _request(3, 2)
    order = np.array([4, 0, 3, 2, 1])
    turned = {"crops": asked["crops"][order], "of_picture": (7 - 5 * asked["of_picture"])[order]}
    assert np.allclose(session.score(turned)[CELLS], session.score(asked)[CELLS][order], atol=1e-5)


@pytest.mark.parametrize(
    "wrong",
    [
        {"crops": np.zeros((2, 32, 32, 3), np.uint8)},
        {"crops": np.zeros((2, 64, 64, 3), np.float32)},
        {"of_picture": np.zeros(3, np.int64)},
        {"more": np.zeros(2, np.int64)},
        {"crops": np.zeros((0, 64, 64, 3), np.uint8), "of_picture": np.zeros(0, np.int64)},
    ],
)
def test_a_request_that_is_not_of_the_contract_is_refused_in_one_line(exported, wrong):
    path, contract = exported
    with pytest.raises(TensorsError) as refused:
        Session(path, contract, threads=1).score({**_request(2), **wrong})
    assert "\n" not in str(refused.value)


def test_brightness_is_no_residual_and_neither_noise_nor_halos_are_lost():
    residuals = Residuals().eval()
    rng = np.random.default_rng(0)
    noise = torch.from_numpy(rng.normal(0, 1, (1, 3, 32, 32)).astype(np.float32))
    with torch.inference_mode():
        residuals.weight += 0.1
        flat, brighter = residuals(noise), residuals(noise + 100)
        edge = residuals(20 * noise)
    inside = np.s_[:, :, 2:-2, 2:-2]
    assert flat.shape == (1, residuals.channels, 16, 16)
    assert torch.allclose(flat[inside], brighter[inside], atol=1e-4)
    strengths = residuals.channels // 2
    cut_off = (edge[inside].abs() == 1).float().mean((0, 2, 3))
    assert cut_off[:strengths].max() > 0.8
    assert cut_off[strengths:].min() < 0.6


def test_evidence_is_the_log_of_the_mean_odds_of_the_picture():
    logits = torch.tensor([[[0.0, 2.0]], [[-3.0, 1.0]], [[4.0, 4.0]]])
    of_picture = torch.tensor([5, 5, 2])
    expected = np.log(np.mean(np.exp([0.0, 2.0, -3.0, 1.0])))
    assert np.allclose(evidence(logits, of_picture).numpy(), [expected, expected, 4.0], atol=1e-5)


def test_a_mean_over_a_picture_is_of_its_own_crops():
    values = torch.tensor([[1.0], [3.0], [10.0]])
    assert over_picture(values, torch.tensor([0, 0, 1])).tolist() == [[2.0], [2.0], [10.0]]

"""The picture branch: what it adds to the logits, what it leaves alone, and that the graph exports."""

from pathlib import Path

import numpy as np
import pytest
import torch

from detector.model.export import export, prove_equal
from detector.model.graph import DetectorGraph
from detector.model.network import Network
from detector.model.picture import PictureBranch
from detector.release.architecture import Architecture, Picture
from detector.release.contract import crops_and_pooling, picture_and_pooling
from detector.release.gate import GateParameters, Term
from detector.release.tensors import Request
from detector.serving.session import Session
from ingest.records import CropPlan, PicturePlan

PLAN = PicturePlan(width_px=64, height_px=64, interpolation="bicubic")
INPUTS = (*crops_and_pooling(CropPlan(crop_px=64)), *picture_and_pooling(PLAN))
GATE = GateParameters(
    terms={"energy": Term(median=0, scale=1, weight=1)}, clip=9, unknown_threshold=9, fake_threshold=0.5
)


def branch(name: str) -> PictureBranch:
    torch.manual_seed(1)
    made = PictureBranch(
        Picture(backbone=name, side_px=64, mean=(127.5,) * 3, deviation=(60.0, 70.0, 80.0), weights="none"),
        2,
    )
    torch.nn.init.normal_(made.head.weight)
    return made


def graph(name: str) -> DetectorGraph:
    torch.manual_seed(0)
    network = Network(Architecture(backbone="lcnet_035", crop_px=64, forensic=False, width=8), 2).eval()
    return DetectorGraph(network, GATE, None, branch(name))


def asked(crops: int, pictures: int, rows: int) -> Request:
    rng = np.random.default_rng(crops)
    poolings = [rng.random((rows, count)).astype(np.float32) for count in (crops, pictures)]
    pooling, picture_pooling = (one / one.sum(1, keepdims=True) for one in poolings)
    return {
        "crops": rng.integers(0, 256, (crops, 64, 64, 3), dtype=np.uint8),
        "pooling": pooling,
        "picture": rng.integers(0, 256, (pictures, 64, 64, 3), dtype=np.uint8),
        "picture_pooling": picture_pooling,
    }


@pytest.mark.parametrize("name", ["test_vit", "test_efficientnet"])
def test_a_branch_goes_through_onnx_and_moves_the_logits_alone(tmp_path: Path, name: str) -> None:
    whole, file = graph(name), tmp_path / "detector.onnx"
    contract = export(whole, INPUTS, file)
    assert contract.picture_plan == PLAN
    requests = [asked(5, 2, 3), asked(1, 1, 1)]
    prove_equal(whole, file, contract, requests)
    session = Session(file, contract, threads=1)
    first = requests[0]
    other = first | {"picture": 255 - first["picture"]}
    said, moved = session.score(first), session.score(other)
    assert np.abs(said["logits"] - moved["logits"]).max() > 0.01
    for untouched in ("energy", "unknown_score", "embedding", "pseudo_logit"):
        np.testing.assert_array_equal(said[untouched], moved[untouched])


def test_the_vote_is_the_heads_of_pooled_features_of_pixels_as_the_model_was_shown_them() -> None:
    made, request = branch("test_efficientnet"), asked(1, 3, 2)
    pixels = torch.from_numpy(request["picture"]).float()
    pooling = torch.from_numpy(request["picture_pooling"])
    shown = ((pixels - 127.5) / torch.tensor([60.0, 70.0, 80.0])).permute(0, 3, 1, 2)
    with torch.no_grad():
        features = pooling @ made.backbone(shown)
        wanted = features @ made.head.weight.T + made.head.bias
        assert torch.allclose(made(torch.from_numpy(request["picture"]), pooling), wanted, atol=1e-4)
    assert not any(one.requires_grad for one in made.parameters())
    assert not any(module.training for module in made.modules())

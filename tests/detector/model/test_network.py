import numpy as np
import pytest
import torch

from detector.model.export import export, prove_equal
from detector.model.graph import DetectorGraph
from detector.model.network import Network, PictureBranch, ResidualFrontEnd
from detector.release.contract import crops_and_pooling, picture_and_pooling
from detector.release.manifest import Architecture, GateParameters, Picture, Term
from detector.release.tensors import Request
from detector.serving.session import Session
from ingest.records import CropPlan, PicturePlan

SMALL = Architecture(backbone="lcnet_035", crop_px=64, width=8)


def pool(*rows: list[float]) -> torch.Tensor:
    return torch.tensor(rows)


@pytest.mark.parametrize(
    "architecture",
    [
        SMALL,
        SMALL.model_copy(update={"forensic": False}),
        SMALL.model_copy(update={"backbone": "resnet10t"}),
        SMALL.model_copy(update={"backbone": "test_vit"}),
    ],
    ids=lambda a: f"{a.backbone}-{a.forensic}",
)
def test_any_timm_backbone_gives_outputs_of_the_stated_shapes(architecture):
    side = 160 if architecture.backbone == "test_vit" else 64
    architecture = architecture.model_copy(update={"crop_px": side})
    network = Network(architecture, classes=4).eval()
    with torch.no_grad():
        out = network(torch.rand(3, 3, side, side) * 255, pool([0.5, 0.5, 0.0], [0.0, 0.0, 1.0]))
    assert out.logits.shape == (2, 4)
    assert out.pseudo_logit.shape == (2,)
    assert out.embedding.shape == (2, network.embedding_size)
    assert (out.features.shape[1] > 0) == architecture.forensic


def test_a_pool_is_the_mean_of_its_crops_before_the_head():
    network = Network(SMALL, classes=3).eval()
    crops = torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(0)) * 255
    with torch.no_grad():
        out = network(crops, pool([0.25, 0.75, 0.0]))
        seen = network.backbone(network.front(crops))
        assert network.forensics is not None
        features = network.forensics(crops)
        weights = pool([0.25, 0.75, 0.0])
        apart = network.classify(weights @ seen, weights @ features)
    assert torch.allclose(out.logits, apart.logits, atol=1e-5)
    assert torch.allclose(out.features[0], 0.25 * features[0] + 0.75 * features[1], atol=1e-4)


def test_crops_outside_a_pool_do_not_touch_it():
    network = Network(SMALL, classes=3).eval()
    crops = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1)) * 255
    other = crops.clone()
    other[1] = 255 - other[1]
    with torch.no_grad():
        first, second = (network(c, pool([1.0, 0.0])).logits for c in (crops, other))
    assert torch.allclose(first, second, atol=1e-5)


def test_gradients_reach_every_parameter_from_the_joint_logits():
    network = Network(SMALL, classes=3).train()
    crops = torch.rand(4, 3, 64, 64) * 255
    out = network(crops, torch.eye(4))
    joint = torch.cat([out.logits, out.pseudo_logit[:, None]], 1)
    torch.nn.functional.cross_entropy(joint, torch.tensor([0, 1, 2, 3])).backward()
    assert [name for name, p in network.named_parameters() if p.grad is None] == []


def test_the_front_end_cuts_the_scene_away_and_keeps_the_last_bits():
    front = ResidualFrontEnd()
    ramp = torch.arange(64.0)[None, None, None].expand(1, 3, 64, 64)
    cut = front(ramp)
    assert cut.shape == (1, front.channels, 64, 64)
    inside = cut[0, :, 4:-4, 4:-4]
    assert torch.allclose(inside[1], torch.zeros_like(inside[1]), atol=1e-6), "a ramp has no second residual"
    assert front(ramp * 100)[0, 0].abs().max() == 1, "residuals are clipped"


def test_a_network_without_a_backbone_reads_forensic_features_alone():
    network = Network(Architecture(backbone="none", crop_px=64, width=16), 3).eval()
    crops = torch.rand(2, 3, 64, 64) * 255
    with torch.no_grad():
        output = network(crops, torch.eye(2))
    assert output.embedding.shape == (2, 16)
    assert output.logits.shape == (2, 3)


def test_a_network_must_read_something():
    with pytest.raises(ValueError, match="a backbone or forensic features"):
        Architecture(backbone="none", forensic=False)


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


@pytest.mark.slow
@pytest.mark.parametrize("name", ["test_vit", "test_efficientnet"])
def test_a_branch_goes_through_onnx_and_moves_the_logits_alone(tmp_path, name):
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


def test_the_vote_is_the_heads_of_pooled_features_of_pixels_as_the_model_was_shown_them():
    made, request = branch("test_efficientnet"), asked(1, 3, 2)
    pixels = torch.from_numpy(request["picture"]).float()
    pooling = torch.from_numpy(request["picture_pooling"])
    shown = ((pixels - 127.5) / torch.tensor([60.0, 70.0, 80.0])).permute(0, 3, 1, 2)
    with torch.no_grad():
        features = pooling @ made.backbone(shown)
        wanted = features @ made.head.weight.T + made.head.bias
        assert torch.allclose(made(torch.from_numpy(request["picture"]), pooling), wanted, atol=1e-4)
    assert not any(parameter.requires_grad for parameter in made.parameters())
    assert not any(module.training for module in made.modules())

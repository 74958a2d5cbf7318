import pytest
import torch

from detector.model.network import Network, ResidualFrontEnd
from detector.release.manifest import Architecture

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

import pytest
import timm
import torch

from detector.model.backbone import BackboneError, architecture_of, make_backbone
from detector.model.network import Network, ResidualFrontEnd
from detector.release.manifest import Architecture

SMALL = Architecture(backbone="lcnet_035", crop_px=64, width=8)


def pool(*rows):
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


CLIP = "vit_base_patch16_clip_224.openai"


def test_a_new_network_is_shown_pixels_as_timm_says_that_its_backbone_was():
    clip = architecture_of(CLIP)
    assert clip.mean == pytest.approx([255 * one for one in (0.48145466, 0.4578275, 0.40821073)])
    assert clip.deviation == pytest.approx([255 * one for one in (0.26862954, 0.26130258, 0.27577711)])
    assert architecture_of("test_vit").mean == (127.5,) * 3
    assert architecture_of("lcnet_050").mean == pytest.approx((123.675, 116.28, 103.53))
    assert architecture_of("none", crop_px=64) == Architecture(crop_px=64)


@pytest.mark.parametrize("forensic", [True, False])
def test_the_backbone_is_given_the_mean_as_0_and_a_deviation_more_as_1(forensic):
    architecture = Architecture(
        backbone="lcnet_035", forensic=forensic, crop_px=64, mean=(10, 20, 30), deviation=(1, 2, 4)
    )
    front = Network(architecture, 2).front
    grey = torch.tensor([11.0, 22.0, 34.0])[None, :, None, None].expand(1, 3, 64, 64)
    assert torch.equal(front(grey)[:, -3:], torch.ones(1, 3, 64, 64))
    without = Network(architecture.model_copy(update={"mean": None, "deviation": None}), 2).front
    middle = 127.5 if forensic else 103.53
    assert without(torch.full((1, 3, 64, 64), middle))[0, -1, 9, 9] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("resnet18x", "resnet18x is no model that timm knows: resnet18"),
        ("hf_hub:timm/resnet18", "is no model that timm knows"),
        ("hf-hub:timm/resnet18", "is no model that timm knows"),
        ("lcnet_050.nothing", "timm knows no weights nothing of lcnet_050: lcnet_050.ra2_in1k"),
        ("inception_v3", "cannot be made for images of 64 px"),
    ],
)
def test_a_backbone_that_cannot_be_made_is_one_line(name, told):
    with pytest.raises(BackboneError, match=told) as error:
        make_backbone(name, 3, 64)
    assert "\n" not in str(error.value)


def test_what_a_backbone_begins_with_is_what_timm_draws():
    torch.manual_seed(3)
    made, width = make_backbone("lcnet_035", 12, 64)
    torch.manual_seed(3)
    own = timm.create_model("lcnet_035", pretrained=False, in_chans=12, num_classes=0)
    assert width == own.eval()(torch.zeros(1, 12, 64, 64)).shape[1]
    assert all(torch.equal(value, own.state_dict()[name]) for name, value in made.state_dict().items())

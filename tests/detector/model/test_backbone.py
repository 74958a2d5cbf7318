import pytest
import timm
import torch

from detector.model.backbone import BackboneError, architecture_of, make_backbone
from detector.model.network import Network
from detector.release.manifest import Architecture

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

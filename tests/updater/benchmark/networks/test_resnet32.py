import pytest
import torch

import updater.benchmark.networks.resnet32  # noqa: F401 - timm knows it from then on
from detector.model.backbone import BackboneError, architecture_of, make_backbone

NAME = "resnet32_cifar"


def test_it_has_as_many_weights_as_published():
    backbone, width = make_backbone(NAME, 3, 32)
    assert width == 64
    # With a head of ten classes 464,154: the paper's 0.46 million.
    assert sum(parameter.numel() for parameter in backbone.parameters()) + 64 * 10 + 10 == 464_154
    convolutions = [module for module in backbone.modules() if isinstance(module, torch.nn.Conv2d)]
    assert len(convolutions) + 1 == 32


def test_where_channels_double_the_identity_is_every_second_pixel_and_zeros():
    backbone, _ = make_backbone(NAME, 3, 32)
    block = next(module for module in backbone.modules() if getattr(module, "more", 0))
    for one in block.body:
        if isinstance(one, torch.nn.Conv2d):
            torch.nn.init.zeros_(one.weight)
    images = torch.rand(1, 16, 8, 8)
    found = block.eval()(images)
    assert torch.equal(found[:, :16], images[:, :, ::2, ::2])
    assert found.shape == (1, 32, 4, 4)
    assert not found[:, 16:].any()


def test_it_is_shown_what_cifar_100_has_on_average():
    assert architecture_of(NAME).mean == pytest.approx([255 * one for one in (0.5071, 0.4867, 0.4408)])


def test_it_has_no_weights_to_begin_with():
    with pytest.raises(BackboneError, match="knows no weights cifar100"):
        architecture_of(f"{NAME}.cifar100")

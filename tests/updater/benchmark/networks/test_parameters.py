"""Each network has as many parameters as is printed of it, and two processes train the network of one."""

import math
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torchvision.models import GoogLeNet

import updater.benchmark.networks.backbones  # noqa: F401 - timm knows it from then on
from detector.model.backbone import BackboneError, architecture_of, make_backbone
from updater.benchmark.forgerynet import training
from updater.benchmark.forgerynet.choices import TASKS
from updater.benchmark.forgerynet.training import NetworkRecipe
from updater.benchmark.networks import clips, images, maps, names, videos
from updater.benchmark.networks.images import make_image_network
from updater.benchmark.networks.maps import make_map_network, map_of
from updater.benchmark.networks.names import NetworkError
from updater.benchmark.networks.videos import make_video_network, sampling_of
from updater.training.weights import WeightsError


def millions(network):
    return sum(parameter.numel() for parameter in network.parameters()) / 1e6


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("x3d_m", 2.98),  # the paper prints 2.9
        *zip(("slow_r50", "tsm_r50", "slowfast_r50"), (31.64, 23.51, 33.56), strict=True),
        # Published with 400 classes: 12.70, of which the head has 1,025 for each.
        ("i3d", 12.70 - 398 * 1025e-6),
        # Published with 487 classes: 79.99, of which the head has 4,097 for each.
        ("c3d", 79.99 - 485 * 4097e-6),
        *zip(names.TORCHVISION, (33.17, 11.49, 31.30, 7.91, 34.23), strict=True),
    ],
)
def test_networks_on_videos_are_of_the_published_size(name, wanted):
    with torch.device("meta"):
        found = millions(videos.make_video_network(name, 2, 224, 16))
    assert math.isclose(found, wanted, abs_tol=0.0051)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        *zip(("mobilenetv3_small_100", "mobilenetv3_large_100"), (1.52, 4.20), strict=True),
        *zip(("efficientnet_b0", "resnet18"), (4.01, 11.18), strict=True),
        *zip(("legacy_xception", "resnest101e"), (20.81, 46.23), strict=True),
        ("san19_patchwise", 18.47),  # ForgeryNet prints 18.5
        ("f3net", 48.22),  # and 57.3: how the authors mix the streams is not published
    ],
)
def test_networks_on_pictures_are_of_the_published_size(name, wanted):
    network = images.make_image_network(name, 2, images.published_px(name))
    assert math.isclose(millions(network), wanted, abs_tol=0.0051)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "wanted"), [("unet:legacy_xception", 28.77), ("fpn:hrnet_w48", 69.24)])
def test_decoders_are_of_the_published_size(name, wanted):
    kind, _, backbone = name.partition(":")
    assert math.isclose(millions(maps.EncoderDecoder(kind, backbone)), wanted, abs_tol=0.0051)


@pytest.mark.parametrize(
    ("check", "name", "said"),
    [
        (names.check_video, "x3d", "choose of x3d_m, slowfast_r50, .*frames:BACKBONE"),
        (names.check_video, "lstm", "lstm looks at no videos"),
        (TASKS["video"].check, "c3d", "choose of x3d_m, .*frames:BACKBONE .any model of timm's"),
        (TASKS["video"].check, "tsn:resnet18", "tsn:resnet18 looks at no videos"),
        (names.check_image, "gabor:resnet18", "choose of f3net, ela:BACKBONE, highpass:BACKBONE"),
        (names.check_video, "frames:resnet19", "resnet19 is no model that timm knows: resnet18"),
        (names.check_video, "tsn:bn_incepton", "bn_incepton is no model that timm knows: bn_inception"),
        (names.check_video, "lstm:highpass:resnet19", "resnet19 is no model that timm knows: resnet18"),
        (names.check_maps, "unet", "choose of regression:BACKBONE, unet:BACKBONE"),
    ],
)
def test_a_name_that_is_none_is_one_line_that_says_what_there_is(check, name, said):
    with pytest.raises(NetworkError, match=said):
        check(name)


def test_by_their_names_networks_have_the_logits_of_pytorchvideo_0_1_5():
    clip = torch.sin(torch.arange(3 * 8 * 64 * 64).double()).view(1, 3, 8, 64, 64).float()
    for network, wanted in (
        (clips.x3d(2), [0.0391620, 0.0240680]),
        (clips.slow_only(2), [6.7126689, 0.9228557]),
        (clips.SlowFast(2, fused=7), [-3.7491300, 0.2371826]),
    ):
        for number, (name, value) in enumerate(sorted(network.state_dict().items())):
            if value.is_floating_point():
                wave = torch.sin(0.7 * torch.arange(value.numel()).double() + number).view(value.shape)
                one = "running_var" in name or ("norm" in name and "weight" in name)
                value.copy_(1 + 0.5 * wave if one else 0.03 * wave)
        assert network.eval()(clip)[0].tolist() == pytest.approx(wanted, rel=1e-4)


def test_networks_begin_with_weights_of_their_own_names_alone(tmp_path):
    flat = GoogLeNet(5, aux_logits=False, init_weights=False).state_dict()
    save_file(flat, weights := tmp_path / "googlenet.safetensors")
    network = make_video_network("i3d", 2, 64, 8, weights)
    cube = network.conv1.conv.weight  # as I3D has it: the same picture in every frame is seen as one
    assert torch.allclose(cube.sum(2), flat["conv1.conv.weight"], atol=1e-6)
    assert network.fc.weight.shape == (2, 1024), "the head stays as it is"
    backbone, _ = make_backbone("resnet18", 3, 64)
    save_file(backbone.state_dict(), other := tmp_path / "resnet18.safetensors")
    levels = make_map_network("unet:resnet18", 64, other).decode.model.encoder.model
    assert torch.equal(levels.conv1.weight, backbone.conv1.weight)
    for name in ("x3d_m", "s3d", "frames:test_resnet"):
        with pytest.raises(WeightsError, match="does not fit the network: it lacks"):
            make_video_network(name, 2, 64, 8, other)
    with pytest.raises(NetworkError, match="c3d has no published weights"):
        make_video_network("c3d", 2, 64, 8, pretrained=True)


SCRIPT = Path(__file__).with_name("train_in_processes.py")


@pytest.mark.slow
def test_two_processes_train_the_network_of_one(tmp_path, fork_together):
    found = []
    for processes in (1, 2):
        file = tmp_path / f"{processes}.safetensors"
        begun = fork_together(processes, SCRIPT, os.environ, str(file))
        assert [one.wait(300) for one in begun] == [0] * processes
        found.append(load_file(file))
    one, two = found
    assert one.keys() == two.keys()
    for key, value in one.items():
        torch.testing.assert_close(two[key], value, atol=1e-5, rtol=1e-4)


NAME = "resnet32_cifar"


def test_it_has_as_many_weights_as_published():
    backbone, width = make_backbone(NAME, 3, 32)
    assert width == 64
    # With a head of ten classes 464,154: the paper's 0.46 million.
    assert sum(parameter.numel() for parameter in backbone.parameters()) + 64 * 10 + 10 == 464_154
    assert len([module for module in backbone.modules() if isinstance(module, torch.nn.Conv2d)]) + 1 == 32


def test_where_channels_double_the_identity_is_every_second_pixel_and_zeros():
    backbone, _ = make_backbone(NAME, 3, 32)
    block = next(module for module in backbone.modules() if getattr(module, "more", 0))
    for one in block.body.modules():
        if isinstance(one, torch.nn.Conv2d):
            torch.nn.init.zeros_(one.weight)
    images = torch.rand(1, 16, 8, 8)
    found = block.eval()(images)
    assert torch.equal(found[:, :16], images[:, :, ::2, ::2])
    assert found.shape == (1, 32, 4, 4)
    assert not found[:, 16:].any()


def test_bn_inception_is_the_published_network_but_for_biases_that_a_normalisation_takes_away(tmp_path):
    backbone, width = make_backbone("bn_inception", 3, 224)
    weights = backbone.state_dict()
    biases = sum(value.numel() for name, value in weights.items() if name.endswith("bn.bias"))
    published = sum(one.numel() for one in backbone.parameters()) + biases + 1000 * (width + 1)
    assert published == 11_295_240, "with a head of a thousand classes"
    shown = torch.rand(1, 3, 100, 117)  # odd sides on the way: a pool and a convolution halve them alike
    assert backbone.eval()(shown).shape == (1, width)
    save_file({**weights, "head.weight": torch.zeros(9, width)}, file := tmp_path / "bn.safetensors")
    network = make_video_network("tsn:bn_inception", 2, 64, 3, file)
    assert torch.equal(network.backbone.conv1.conv.weight, weights["conv1.conv.weight"])
    with pytest.raises(WeightsError, match=r"bn_inception cannot be had .No pretrained weights exist"):
        make_video_network("tsn:bn_inception", 2, 64, 3, pretrained=True)


def test_it_is_shown_what_cifar_100_has_on_average_and_has_no_weights_to_begin_with():
    assert architecture_of(NAME).mean == pytest.approx([255 * one for one in (0.5071, 0.4867, 0.4408)])

    with pytest.raises(BackboneError, match="knows no weights cifar100"):
        architecture_of(f"{NAME}.cifar100")


# Every network trains three steps, is interrupted, goes on, and ends with an unbroken training's weights.
RECIPE = NetworkRecipe(32, 2, 3, 0.01, 0.01, 0.0, (0.5,), 1e-4, frames=8)
OF_MAPS = replace(RECIPE, px=64, rate=1e-4, first_rate=1e-4)
"""at 32 px the deepest map is a single cell, too few to normalise by"""
VIDEO_NETWORKS = (
    "x3d_m slowfast_r50 slow_r50 tsm_r50 c3d i3d lstm:test_resnet tsn:test_resnet frames:test_resnet"
    " frames:highpass:test_resnet tsn:bn_inception r3d_18 mc3_18 r2plus1d_18 s3d"
)
MADE = {
    **{
        name: (lambda name=name: make_image_network(name, 2, RECIPE.px), 0)
        for name in (
            "mobilenetv3_small_050",
            "f3net",
            *(f"{of}:test_resnet" for of in ("ela", "highpass", "gram")),
        )
    },
    # But for mvit_v2_s, which takes clips of one size alone, and a minute for them.
    **{
        name: (lambda name=name: make_video_network(name, 2, RECIPE.px, 8), sampling_of(name).frames or 8)
        for name in VIDEO_NETWORKS.split()
    },
    **{
        name: (lambda name=name: make_map_network(name, OF_MAPS.px), -1)
        for name in ("regression:test_resnet", "unet:resnet18", "hrnet_w48")
    },
}


def map_loss(said, truth):
    return (map_of(said) - truth).square().mean() + said[:, :2].logsumexp(1).mean()


def trained(name, checkpoint, progress):
    make, frames = MADE[name]
    recipe = OF_MAPS if frames < 0 else RECIPE
    px = recipe.px

    def load(row, rng):
        shape = (frames, px, px, 3) if frames > 0 else (px, px, 3)
        shown = rng.integers(0, 256, shape, dtype=np.uint8)
        truth = rng.random((px, px), np.float32) if frames < 0 else np.array(row)
        return shown, truth

    loss = map_loss if frames < 0 else training.cross_entropy
    job = training.TrainingJob(make, load, np.full(2, 0.5), name, recipe, loss)
    device = torch.device("cpu")
    return training.train(job, seed=0, device=device, checkpoint=checkpoint, progress=progress).state_dict()


@pytest.mark.slow
@pytest.mark.parametrize("name", MADE)
def test_a_network_that_was_interrupted_ends_with_the_same_weights(name, tmp_path, monkeypatch):
    monkeypatch.setattr("updater.training.fit.SAVE_EVERY", 2)
    # C3D's two wide layers are 60 million weights, of which each checkpoint would hold two copies.
    monkeypatch.setattr(clips, "_WIDE", 64)
    file, left = tmp_path / "unbroken", tmp_path / "interrupted"
    steps = []

    def keep(done, total):
        if done == 3:  # what a training that ends here leaves behind
            shutil.copy(file, left)

    unbroken = trained(name, file, keep)
    resumed = trained(name, left, lambda done, total: steps.append(done))
    assert steps == [3]
    assert resumed.keys() == unbroken.keys()
    for key, value in unbroken.items():
        assert torch.equal(resumed[key], value), key
    assert all(bool(torch.isfinite(value).all()) for value in unbroken.values() if value.is_floating_point())

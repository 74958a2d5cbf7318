"""Each network has as many parameters as is printed of it, and two processes train the network of one."""

import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from forked import Forked
from safetensors.torch import load_file
from torch import nn

from detector.model.backbone import BackboneError
from updater.benchmark.forgerynet.run import TASKS
from updater.benchmark.networks import images, maps, videos
from updater.benchmark.networks.images import NetworkError


def millions(network: nn.Module) -> float:
    return sum(parameter.numel() for parameter in network.parameters()) / 1e6


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("x3d_m", 2.98),  # the paper prints 2.9
        ("slow_r50", 31.64),
        ("tsm_r50", 23.51),
        ("slowfast_r50", 33.56),
        # Published with 400 classes: 12.70, of which the head has 1,025 for each.
        ("i3d", 12.70 - 398 * 1025e-6),
        # Published with 487 classes: 79.99, of which the head has 4,097 for each.
        ("c3d", 79.99 - 485 * 4097e-6),
        ("r3d_18", 33.17),
        ("mc3_18", 11.49),
        ("r2plus1d_18", 31.30),
        ("s3d", 7.91),
        ("mvit_v2_s", 34.23),
    ],
)
def test_networks_on_videos_are_of_the_published_size(name: str, wanted: float) -> None:
    with torch.device("meta"):
        found = millions(videos.make_video_network(name, 2, 224, 16))
    assert math.isclose(found, wanted, abs_tol=0.0051)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("mobilenetv3_small_100", 1.52),
        ("mobilenetv3_large_100", 4.20),
        ("efficientnet_b0", 4.01),
        ("resnet18", 11.18),
        ("legacy_xception", 20.81),
        ("resnest101e", 46.23),
    ],
)
def test_networks_on_pictures_are_of_the_published_size(name: str, wanted: float) -> None:
    assert math.isclose(millions(images.make_image_network(name, 2, 64)), wanted, abs_tol=0.0051)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "wanted"), [("unet:legacy_xception", 28.77), ("fpn:hrnet_w48", 69.24)])
def test_decoders_are_of_the_published_size(name: str, wanted: float) -> None:
    kind, _, backbone = name.partition(":")
    assert math.isclose(millions(maps.EncoderDecoder(kind, backbone)), wanted, abs_tol=0.0051)


@pytest.mark.parametrize(
    ("check", "name", "said"),
    [
        (videos.check, "x3d", "choose of x3d_m, slowfast_r50, .*frames:BACKBONE"),
        (videos.check, "lstm", "lstm looks at no videos"),
        (TASKS["video"].check, "c3d", "choose of x3d_m, .*frames:BACKBONE .any model of timm's"),
        (TASKS["video"].check, "tsn:resnet18", "tsn:resnet18 looks at no videos"),
        (images.check, "gabor:resnet18", "choose of ela:BACKBONE, highpass:BACKBONE, gram:BACKBONE"),
        (maps.check, "unet", "choose of regression:BACKBONE, unet:BACKBONE"),
    ],
)
def test_a_name_that_is_none_is_one_line_that_says_what_there_is(check, name: str, said: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(NetworkError, match=said):
        check(name)


@pytest.mark.parametrize("name", ["frames:resnet19", "lstm:highpass:resnet19"])
def test_a_backbone_that_is_none_is_one_line_too(name: str) -> None:
    with pytest.raises(BackboneError, match="resnet19 is no model that timm knows: resnet18"):
        videos.check(name)


SCRIPT = Path(__file__).with_name("train_in_processes.py")


@pytest.mark.slow
def test_two_processes_train_the_network_of_one(
    tmp_path: Path, fork_together: Callable[..., list[Forked]]
) -> None:
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

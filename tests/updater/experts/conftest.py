"""A small network as a checkpoint, and pictures of two families in folders."""

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file

from detector.release.experts import ExpertContract

SIDE = 64
NAME = "test_efficientnet"


@pytest.fixture
def contract():
    return ExpertContract(name="small", input="crop", side_px=SIDE, digest="", checkpoint="", licence="MIT")


@pytest.fixture
def checkpoint(tmp_path):
    """Writes a whole network with a head of so many logits; returns its file and the network."""

    def checkpoint(logits=1, **metadata):
        torch.manual_seed(0)
        network = timm.create_model(NAME, num_classes=logits).eval()
        path = tmp_path / f"network-{logits}.safetensors"
        save_file(network.state_dict(), path, metadata or None)
        return path, network

    return checkpoint


@pytest.fixture
def folders(tmp_path):
    """DIR/FAMILY/{0_real,1_fake}/FILE: what is forged is blocky."""

    def folders(*names, count=12):
        rng = np.random.default_rng(0)
        for name in names:
            for kind in ("0_real", "1_fake"):
                place = tmp_path / "set" / name / kind
                place.mkdir(parents=True)
                for number in range(count):
                    pixels = rng.integers(0, 256, (80, 90, 3), np.uint8)
                    if kind == "1_fake":
                        pixels = np.repeat(np.repeat(pixels[::2, ::2], 2, 0), 2, 1)
                    Image.fromarray(pixels).save(place / f"{number}.png")
        return tmp_path / "set"

    return folders

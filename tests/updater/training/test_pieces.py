"""A step that a device does not hold at once is done in pieces, and is the same step."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from detector.release.architecture import Architecture
from updater.training import loop
from updater.training.crop_rows import DeviceMemoryError
from updater.training.loop import Training, item_weights
from updater.training.losses import classification
from updater.training.step import FIRST, Options, Step

CPU = torch.device("cpu")
RECIPE = replace(FIRST, batch=9, pseudo_share=0.4, crops_an_item=2, optimizer="sgd")
STEPS = 3


def limited(module, most):
    """Have a module raise what a full GPU raises for more than so many rows in training; says what it saw."""
    seen = []

    def look(_module, inputs):
        if torch.is_grad_enabled():
            seen.append(len(inputs[0]))
            if len(inputs[0]) > most:
                raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate much.")

    module.register_forward_pre_hook(look)
    return seen


@pytest.fixture
def trained(labelled):
    """Trains a few steps on a device that holds so many crops; returns the weights, and what it was shown."""

    def trained(most, steps=STEPS, backbone="test_vit"):
        architecture = Architecture(backbone=backbone, crop_px=64, width=8)
        # A loss over pairs of items: no mean over pieces gives it.
        options = Options(exposure="outliers", scheme="mt")
        items = labelled({"real": 6, "blocky": 6})
        step = Step(items, ("real", "blocky"), architecture, options=options, recipe=RECIPE)
        torch.manual_seed(0)
        network = loop.start(step)
        data = loop.training_set(step, network)
        loop.whiten(network, step, data)
        seen = limited(network.backbone, most)
        Training(step, data, loop.checkpoint(step, "test", ("crops",))).run(
            "crops",
            network,
            classification(step, data),
            item_weights(data.targets, 0.5),
            steps=steps,
            rate=0.05,
        )
        return network.state_dict(), seen

    return trained


def worst(one, other):
    return max(float((one[name].double() - other[name].double()).abs().max()) for name in one)


def test_pieces_make_the_step_of_the_whole_batch(trained):
    whole, at_once = trained(1000)
    begun, _ = trained(1000, steps=0)
    pieces, seen = trained(8)
    rows = at_once[0]
    assert at_once == [rows] * STEPS
    assert worst(whole, begun) > 1e-2
    assert worst(whole, pieces) < 1e-5
    # Halved until it fits, and so it stays; each piece passes a second time on the way back.
    tried = [size for size in seen if size > 8]
    assert tried == [-(-rows // 2**power) for power in range(len(tried))]
    assert sum(size for size in seen if size <= 8) == 2 * STEPS * rows


def test_a_device_that_holds_no_two_crops_is_told_of_in_one_line(trained):
    with pytest.raises(DeviceMemoryError, match="cpu has too little memory to train on 9 items") as caught:
        trained(1)
    assert "\n" not in str(caught.value)


def test_of_several_processes_none_goes_on_in_pieces_without_the_others(trained, monkeypatch):
    monkeypatch.setattr(loop, "processes", SimpleNamespace(count=lambda: 2))
    with pytest.raises(DeviceMemoryError, match="9 items"):
        trained(8)

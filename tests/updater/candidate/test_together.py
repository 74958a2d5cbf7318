"""A step on disk is the step that the other processes train."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from detector.model.network import Network
from detector.release.manifest import Architecture
from updater.candidate.together import load_step, save_step
from updater.training.loop import _identity
from updater.training.step import UPDATE, Learnt, Step
from updater.training.weights import Weights


@pytest.fixture
def step(labelled, tmp_path):
    architecture = Architecture(backbone="none", crop_px=64)
    network = Network(architecture, 2)
    return Step(
        train=labelled({"real": 3, "blocky": 2, "striped": 2}),
        classes=("real", "blocky", "striped"),
        architecture=architecture,
        previous=Learnt(network.eval(), ("real", "blocky")),
        recipe=replace(UPDATE, batch=7),
        without=frozenset({"resampled", "blended"}),
        seed=5,
        checkpoint=tmp_path / "checkpoint.safetensors",
    )


@pytest.mark.parametrize("first", [False, True])
def test_a_step_read_back_is_the_step_that_its_checkpoint_is_bound_to(step, tmp_path, first):
    features = np.random.default_rng(0).normal(size=(len(step.train.crops), 4)).astype(np.float32)
    step = replace(step, train=replace(step.train, crop_features=features))
    if first:
        begun = Weights("w", {"x": torch.rand(2)}, ("real", "blocky", "striped"), "MIT")
        step = replace(step, previous=None, start_from=begun)
    path = tmp_path / "step.safetensors"
    save_step(path, step)
    read = load_step(path, torch.device("cpu"))
    assert _identity(read, "m") == _identity(step, "m")
    assert _identity(read, "m") != _identity(replace(step, seed=6), "m")
    if first:
        assert read.start_from.described == begun.described
        assert read.start_from.classes == begun.classes
    else:
        assert read.previous.classes == ("real", "blocky")
        before, after = (each.previous.network.state_dict() for each in (step, read))
        assert all(torch.equal(value, after[name]) for name, value in before.items())
    assert np.array_equal(read.train.crop_features, features)
    assert read.checkpoint == step.checkpoint
    assert list(tmp_path.iterdir()) == [path], "one file, which is removed when the step is trained"
    assert (read.train.sources, read.train.groups) == (step.train.sources, step.train.groups)

"""A step on its way to another process is the step that is trained there."""

import pickle
from dataclasses import replace

import pytest
import torch

from detector.model.network import Network
from detector.release.manifest import Architecture
from updater.data.stored_rows import store_rows
from updater.training.loop import _identity
from updater.training.step import UPDATE, Step, TrainedModel
from updater.training.weights import Weights


@pytest.mark.parametrize("first", [False, True])
def test_a_step_that_was_sent_is_the_step_that_its_checkpoint_is_bound_to(labelled, tmp_path, first):
    architecture = Architecture(backbone="test_efficientnet", crop_px=64)
    items = labelled({"real": 3, "blocky": 2, "striped": 2})
    step = Step(
        train=replace(items, crops=store_rows(items.crops)),
        classes=("real", "blocky", "striped"),
        architecture=architecture,
        previous=None if first else TrainedModel(Network(architecture, 2).eval(), ("real", "blocky")),
        start_from=Weights("w", {"x": torch.rand(2)}, None, "MIT") if first else None,
        recipe=replace(UPDATE, batch=7),
        seed=5,
        checkpoint=tmp_path / "checkpoint.safetensors",
    )
    sent = pickle.loads(pickle.dumps(step))
    assert _identity(sent, "m") == _identity(step, "m") != _identity(replace(step, seed=6), "m")
    assert (sent.checkpoint, sent.train.sources) == (step.checkpoint, step.train.sources)
    assert (sent.train.crops[:] == items.crops).all()

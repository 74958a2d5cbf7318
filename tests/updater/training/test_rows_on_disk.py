"""A learner that reads crops and features from disk learns what one that holds them learns."""

from dataclasses import replace

import pytest
import torch

from detector.release.architecture import Architecture
from updater.benchmark.learners.methods import LEARNERS
from updater.data import stored_rows
from updater.data.stored_rows import StoredRows, stored
from updater.training import loop
from updater.training.step import Recipe, Step

RECIPE = Recipe(3, 3e-3, 6, 2e-3, 0.5, batch=8)


@pytest.mark.parametrize(
    "learner", ["softmax-rehearsal", "lucir", "foster", "nscil", "icarl", "bic", "lrcil", "dytox"]
)
def test_rows_on_disk_teach_what_those_in_memory_do(labelled, monkeypatch, learner):
    items = labelled({"real": 6, "blocky": 4})
    later = labelled({"real": 4, "blocky": 3, "striped": 4}, seed=1)
    architecture = Architecture(backbone="lcnet_035", crop_px=64, width=8)

    def learn(on_disk):
        def some(held):
            return replace(held, crops=stored(held.crops)) if on_disk else held

        first = Step(some(items), ("real", "blocky"), architecture, recipe=RECIPE)
        learnt = LEARNERS[learner](first)
        second = replace(first, train=some(later), classes=("real", "blocky", "striped"), previous=learnt)
        return LEARNERS[learner](second).network.state_dict()

    held = learn(False)
    monkeypatch.setattr(stored_rows, "MAX_HELD_BYTES", 100)
    found = learn(True)
    assert all(torch.equal(value, found[name]) for name, value in held.items())


def test_nothing_that_grows_with_the_crops_is_held_by_a_training_set(labelled, monkeypatch):
    monkeypatch.setattr(stored_rows, "MAX_HELD_BYTES", 100)
    items = labelled({"real": 6, "blocky": 4})
    step = Step(
        replace(items, crops=stored(items.crops)), ("real", "blocky"), Architecture(crop_px=64), recipe=RECIPE
    )
    data = loop.training_set(step, loop.start(step))
    assert isinstance(data.crops, StoredRows)
    assert isinstance(data.features, StoredRows)
    assert len(data.crops) == len(data.features) == data.starts[-1] == 30

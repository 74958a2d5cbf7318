"""Rows of crops: the same whatever computes them, on disk or in memory, as many at once as fit a device."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from detector.features.texture import CropFeatures
from detector.release.manifest import Architecture
from updater.benchmark.learners.methods import LEARNERS
from updater.data import stored_rows
from updater.data.stored_rows import StoredRows, store_rows
from updater.training import loop
from updater.training.crop_rows import DeviceMemoryError, by_rows, fitting, forensics_on
from updater.training.step import Recipe, Step

CPU = torch.device("cpu")


def test_the_features_of_the_graph_are_those_of_torch_within_rounding():
    crops = np.random.default_rng(0).integers(0, 256, (5, 128, 128, 3)).astype(np.uint8)
    crops[1] = 128  # all of one colour
    forensics = CropFeatures(128)
    fast = forensics_on(CPU, forensics, 128)
    assert fast is not forensics
    found, expected = (torch.from_numpy(by_rows(one, crops, CPU)) for one in (fast, forensics))
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


def test_crops_of_another_side_are_left_to_torch():
    forensics = CropFeatures(64)
    assert forensics_on(CPU, forensics, 64) is forensics


CROPS = np.random.default_rng(0).integers(0, 256, (700, 4, 4, 3), np.uint8)


def means(most):
    """A function whose device holds so many rows, and how many it was asked for each time."""
    asked = []

    def function(images):
        asked.append(len(images))
        if len(images) > most:
            raise torch.OutOfMemoryError("full")
        return images.mean((1, 2, 3))[:, None]

    return function, asked


@pytest.mark.parametrize("most", [1, 50, 200, 10_000])
def test_rows_at_once_grow_until_the_memory_is_full_and_every_row_comes_once(most):
    function, asked = means(most)
    seen = []
    parts = fitting(function, CROPS, torch.device("cpu"), lambda done, total: seen.append((done, total)))
    assert torch.allclose(torch.cat(list(parts))[:, 0], torch.from_numpy(CROPS).float().mean((1, 2, 3)))
    assert seen[-1] == (700, 700)
    full = [at for at, rows in enumerate(asked) if rows > most]
    # Once it was full it is not filled again, and then at least half of what fits is used.
    held = asked[full[-1] + 1 :] if full else asked
    assert max(held) <= most
    assert held[0] * 2 > min(most, 64)
    assert len(full) <= 7


def test_a_device_that_holds_not_one_is_told_of_in_one_line():
    with pytest.raises(DeviceMemoryError, match="too little memory for one crop") as caught:
        list(fitting(means(0)[0], CROPS, torch.device("cpu"), lambda done, total: None))
    assert "\n" not in str(caught.value)


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
            return replace(held, crops=store_rows(held.crops)) if on_disk else held

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
        replace(items, crops=store_rows(items.crops)),
        ("real", "blocky"),
        Architecture(crop_px=64),
        recipe=RECIPE,
    )
    data = loop.training_set(step, loop.start(step))
    assert isinstance(data.crops, StoredRows)
    assert isinstance(data.features, StoredRows)
    assert len(data.crops) == len(data.features) == data.starts[-1] == 30

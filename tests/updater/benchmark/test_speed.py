import time
from dataclasses import replace

import pytest
import torch

from detector.architecture import Architecture
from updater.benchmark import speed
from updater.training.allocation import keep_freed_memory
from updater.training.batches import at_once
from updater.training.step import FIRST, Options, Step

NONE = Architecture(backbone="none", crop_px=64, width=8)


@pytest.fixture
def step(labelled):
    recipe = replace(FIRST, batch=8, pseudo_share=0.5)
    items = labelled({"real": 4, "blocky": 4})
    return Step(items, ("real", "blocky"), NONE, options=Options(exposure="class"), recipe=recipe)


def test_it_tells_how_much_of_the_time_is_waited_for_batches(step, monkeypatch):
    monkeypatch.setattr(speed, "_ROUNDS", 1)
    ready = speed.loop.ready_pools

    def slow(*made_of):
        time.sleep(0.02)
        return ready(*made_of)

    before = torch.get_rng_state()
    quick = {one.stage: one for one in speed.measure(step, (20, 48))}
    monkeypatch.setattr("updater.training.loop.ready_pools", slow)
    waiting = {one.stage: one for one in speed.measure(step, (20, 48))}
    assert list(quick) == ["balanced"], "there is no backbone to train"
    assert waiting["balanced"].share < 0.5 < quick["balanced"].share
    assert waiting["balanced"].loop < 8 / 0.02
    assert torch.equal(before, torch.get_rng_state())


def test_a_backbone_is_a_stage_of_its_own_and_every_step_is_told(step, monkeypatch):
    monkeypatch.setattr(speed, "_ROUNDS", 1)
    told = []
    one = replace(
        step,
        architecture=NONE.model_copy(update={"backbone": "lcnet_035"}),
        progress=lambda stage, done, total: told.append((stage, done, total)),
    )
    found = speed.measure(one, (18, 20))
    assert [of.stage for of in found] == ["backbone", "balanced"]
    assert all(of.loop > 0 and of.fixed > 0 for of in found)
    of_training = [tuple(at) for stage, *at in told if stage in ("backbone", "balanced")]
    assert of_training == [(done, 76) for done in range(1, 77)]


def test_batches_made_in_a_row_come_in_order_and_none_twice():
    made = []
    found = at_once(lambda number: made.append(number) or number, range(3, 45))
    assert next(found) == 3
    assert len(made) < 42, "not all at once"
    assert [3, *found] == made == list(range(3, 45))


def test_freed_memory_is_kept_where_glibc_is():
    assert keep_freed_memory() is keep_freed_memory()

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from detector.release.architecture import Architecture
from updater.benchmark import speed
from updater.training import loop
from updater.training.batches import at_once
from updater.training.fit import keep_freed_memory
from updater.training.step import FIRST, Options, Step

NONE = Architecture(backbone="none", crop_px=64, width=8)


@pytest.fixture
def step(labelled):
    recipe = replace(FIRST, batch=8, pseudo_share=0.5)
    items = labelled({"real": 4, "blocky": 4})
    return Step(items, ("real", "blocky"), NONE, options=Options(exposure="class"), recipe=recipe)


def test_it_tells_how_much_of_the_time_is_waited_for_batches(step, monkeypatch):
    """By a clock of its own: a step takes a second, and drawing its batch takes none, or three."""
    seconds, drawing = 0.0, 0.0
    ready = loop.ready_pools

    def drawn(*made_of):
        nonlocal seconds
        seconds += drawing
        return ready(*made_of)

    def trained(stage, done, total):
        nonlocal seconds
        seconds += stage == "balanced"

    monkeypatch.setattr(speed, "_ROUNDS", 1)
    monkeypatch.setattr(speed, "time", SimpleNamespace(perf_counter=lambda: seconds))
    monkeypatch.setattr(loop, "ready_pools", drawn)
    timed = replace(step, progress=trained)
    before = torch.get_rng_state()
    (quick,) = speed.measure(timed, (20, 48))
    drawing = 3.0
    (waiting,) = speed.measure(timed, (20, 48))
    assert quick.stage == "balanced", "there is no backbone to train"
    assert (quick.share, waiting.share) == (1, 0.25)
    assert (quick.loop, waiting.loop) == (8, 2)
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

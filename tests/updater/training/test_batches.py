"""Batches: pseudo-forgeries drawn anew for each, and always the same for the same number."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from detector.release.manifest import Architecture
from updater.draws import cumulative
from updater.outliers.exposure import Exposure, expose
from updater.training import batches, two_stages
from updater.training.batches import Drawn, TrainingSet, ahead, at_once, draw, mirror_crops, shift_crops
from updater.training.loop import item_weights, optimiser_of, start
from updater.training.step import FIRST, Options, Step

TINY = Architecture(backbone="lcnet_035", crop_px=64, width=8)
CLASSES = ("real", "blocky")
RECIPE = replace(FIRST, backbone_steps=5, balanced_steps=4, batch=10, pseudo_share=0.5)


@pytest.fixture(scope="module")
def items(labelled):
    return labelled({"real": 8, "blocky": 4})


def step(items, **changes):
    return replace(Step(items, CLASSES, TINY, recipe=RECIPE, seed=3), **changes)


@pytest.fixture(scope="module")
def data(items):
    pseudo = expose(items, 6, frozenset(), 3)
    return TrainingSet(
        np.array([0] * 8 + [1] * 4 + [2] * 6),
        torch.tensor([False, True]),
        np.concatenate([items.crops, pseudo.crops]),
        np.concatenate([items.starts, items.starts[-1] + pseudo.starts[1:]]),
        np.zeros((36, 0), np.float32),
        Exposure(items, frozenset()),
    )


def drawn(items, data, number, on_crops=True, **changes):
    return draw(step(items, **changes), data, cumulative(item_weights(data.targets, 1.0)), number, on_crops)


def test_each_batch_has_pseudo_forgeries_of_its_own(items, data):
    first, second = drawn(items, data, 0), drawn(items, data, 1)
    made = {crop.tobytes() for one in (first, second) for crop in one.outliers}
    assert len(made) == len(first.outliers) + len(second.outliers)
    assert not made & {crop.tobytes() for crop in data.crops}


def test_fresh_ones_take_the_place_of_stored_ones(items, data):
    for number in range(5):
        one = drawn(items, data, number)
        assert (data.targets[one.items] < 2).all()
        assert len(one.items) + len(one.outliers) == 10


def test_the_same_number_gives_the_same_batch_and_another_seed_does_not(items, data):
    first, again, other = drawn(items, data, 4), drawn(items, data, 4), drawn(items, data, 4, seed=9)
    assert np.array_equal(first.rows, again.rows)
    assert np.array_equal(first.outliers, again.outliers)
    assert not np.array_equal(first.outliers[:2], other.outliers[:2])


def test_a_stage_on_rows_draws_the_stored_ones(items, data):
    numbers = [drawn(items, data, number, on_crops=False) for number in range(6)]
    assert all(one.outliers is None for one in numbers)
    assert any((data.targets[one.items] == 2).any() for one in numbers)


def test_without_exposure_no_batch_has_pseudo_forgeries(items, data):
    assert drawn(items, replace(data, exposure=None, targets=np.minimum(data.targets, 1)), 0).outliers is None


def test_batches_come_in_order_whatever_thread_draws_them():
    def of(run):
        return [Drawn(number, np.arange(1), np.arange(1), torch.eye(1)) for number in run]

    for beside_a_gpu in (False, True):
        assert [one.torch_seed for one in ahead(of, range(3, 60), beside_a_gpu)] == list(range(3, 60))


def test_batches_that_are_made_together_are_those_made_one_by_one(items, data):
    own, three = step(items), [drawn(items, data, number) for number in range(3)]
    network = start(own)
    for batch, ready in zip(three, batches.ready_images(own, data, network, three), strict=True):
        (alone,) = batches.ready_images(own, data, network, [batch])
        pairs = zip((*ready.parts, *ready.features), (*alone.parts, *alone.features), strict=True)
        assert ready.drawn is batch
        assert all(torch.allclose(*pair, rtol=1e-4, atol=1e-5) for pair in pairs)


def test_batches_made_in_a_row_come_in_order_and_none_twice():
    made = []
    found = at_once(lambda number: made.append(number) or number, range(3, 45))
    assert next(found) == 3
    assert len(made) < 42, "not all at once"
    assert [3, *found] == made == list(range(3, 45))


def test_an_error_in_a_thread_reaches_the_training():
    def broken(number):
        raise ValueError("cannot draw")

    with pytest.raises(ValueError, match="cannot draw"):
        next(ahead(broken, range(3), False))


class StopError(Exception):
    pass


@pytest.mark.parametrize(
    ("optimizer", "exposure"), [("adamw", "outliers"), ("adamw", "class"), ("sgd", "none")]
)
def test_an_interrupted_run_goes_on_to_the_same_network(optimizer, exposure, items, tmp_path, monkeypatch):
    monkeypatch.setattr("updater.training.fit.SAVE_EVERY", 2)
    recipe = RECIPE
    if optimizer == "sgd":
        recipe = replace(RECIPE, optimizer="sgd", schedule="tenths", flip=True, shift_px=4)
    one = step(items, options=Options(exposure=exposure), recipe=recipe)
    whole = two_stages.learn(one).network.state_dict()

    def stop(stage, done, total):
        if (stage, done) == ("backbone", 3):
            raise StopError

    broken = replace(one, checkpoint=tmp_path / "run.safetensors", progress=stop)
    with pytest.raises(StopError):
        two_stages.learn(broken)
    done = []
    resumed = replace(broken, progress=lambda stage, at, total: done.append((stage, at)))
    found = two_stages.learn(resumed).network.state_dict()
    assert ("backbone", 3) in done
    assert ("backbone", 1) not in done
    assert all(torch.equal(value, found[name]) for name, value in whole.items())


def test_crops_are_mirrored_only_where_it_is_asked_for_and_the_backbone_is_trained(items, data):
    flips = step(items, recipe=replace(RECIPE, flip=True))
    weights = cumulative(item_weights(data.targets, 0.5))
    plain, drawn = (draw(one, data, weights, 0, True) for one in (step(items), flips))
    assert plain.mirrored is None
    assert draw(flips, data, weights, 0, False).mirrored is None
    assert np.array_equal(plain.rows, drawn.rows)
    assert drawn.mirrored.shape == drawn.rows.shape
    shares = [draw(flips, data, weights, number, True).mirrored.mean() for number in range(60)]
    assert 0.4 < np.mean(shares) < 0.6
    assert np.array_equal(drawn.mirrored, draw(flips, data, weights, 0, True).mirrored)


def test_mixup_is_of_a_batch_and_its_reverse_and_only_while_the_backbone_is_trained(items, data):
    known, one = replace(data, exposure=None), step(items, recipe=replace(RECIPE, mixup=0.2))
    drawn = [draw(one, known, cumulative(item_weights(data.targets, 1.0)), 0, on) for on in (True, False)]
    assert (0 <= drawn[0].mixed <= 1, drawn[1].mixed) == (True, None)
    shares = [replace(drawn[0], mixed=share) for share in (None, 0.25)]
    of = [batches.ready_images(one, known, start(one), [share])[0] for share in shares]
    whole, mixed = (ready.parts[0] for ready in of)
    assert torch.allclose(mixed, 0.25 * whole + 0.75 * whole.flip(0))


def test_a_mirrored_crop_is_turned_round_from_left_to_right():
    crops = np.arange(2 * 2 * 3 * 3, dtype=np.uint8).reshape(2, 2, 3, 3)
    found = mirror_crops(crops, np.array([False, True]))
    assert np.array_equal(found[0], crops[0])
    assert found[1, 0, 0].tolist() == crops[1, 0, 2].tolist()
    assert np.array_equal(found[1, :, ::-1], crops[1])


def test_crops_are_shifted_only_where_it_is_asked_for_and_within_what_is_asked(items, data):
    shifts = step(items, recipe=replace(RECIPE, shift_px=3))
    weights = cumulative(item_weights(data.targets, 0.5))
    assert draw(step(items), data, weights, 0, True).shifts is None
    assert draw(shifts, data, weights, 0, False).shifts is None
    drawn = [draw(shifts, data, weights, number, True).shifts for number in range(30)]
    assert {int(one) for shift in drawn for one in shift.ravel()} == set(range(-3, 4))
    assert np.array_equal(drawn[0], draw(shifts, data, weights, 0, True).shifts)


def test_a_shifted_crop_is_black_where_it_came_from():
    crops = np.arange(1, 2 * 3 * 3 * 3 + 1, dtype=np.uint8).reshape(2, 3, 3, 3)
    found = shift_crops(crops, np.array([[1, -2], [0, 0]]))
    assert np.array_equal(found[1], crops[1])
    assert np.array_equal(found[0, 1:, 0], crops[0, :2, 2])
    assert not found[0, 0].any()
    assert not found[0, :, 1:].any()


@pytest.mark.parametrize("optimizer", ["adamw", "adam", "sgd"])
def test_the_optimizer_is_the_recipes_and_its_first_step_is_by_hand(optimizer):
    weight = torch.nn.Parameter(torch.tensor([1.0]))
    made = optimiser_of(replace(RECIPE, optimizer=optimizer, weight_decay=0.5), 0.1, [{"params": [weight]}])
    weight.grad = torch.tensor([-0.25])
    made.step()
    # AdamW: 1 - 0.1 * 0.5 + 0.1; Adam has the decay in its gradient, 0.5 - 0.25, whose sign its first step is
    # of: 1 - 0.1; SGD: 1 - 0.1 * (0.5 - 0.25).
    assert weight.item() == pytest.approx({"adamw": 1.05, "adam": 0.9, "sgd": 0.975}[optimizer])

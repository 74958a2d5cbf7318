from dataclasses import replace

import numpy as np
import pytest
import torch

from detector.release.manifest import Architecture
from updater.benchmark.learners import lrcil
from updater.training.pools import backbone_rows, forensic_rows
from updater.training.step import FIRST, Options, Step

TINY = Architecture(backbone="lcnet_035", crop_px=64, width=8)
CPU = torch.device("cpu")
RECIPE = replace(FIRST, backbone_steps=4, balanced_steps=4, batch=8, pseudo_share=0.2)
OLD = ("a/real", "a/blocky")
CLASSES = (*OLD, "b/real", "b/striped")


def joined(one, other):
    """Two sets of items in one."""
    return replace(
        one,
        **{
            name: getattr(one, name) + getattr(other, name)
            for name in ("ids", "families", "sources", "groups")
        },
        crops=np.concatenate([one.crops, other.crops]),
        starts=np.concatenate([one.starts, one.starts[-1] + other.starts[1:]]),
    )


@pytest.fixture(scope="module")
def items(labelled):
    return labelled({"a/real": 4, "a/blocky": 4}), labelled({"b/real": 4, "b/striped": 4}, seed=1)


@pytest.fixture(scope="module")
def first(items):
    return lrcil.learn(Step(items[0], OLD, TINY, recipe=RECIPE, seed=1))


def update(items, first, **changes):
    exemplars = items[0].take([0, 1, 4])
    step = Step(joined(exemplars, items[1]), CLASSES, TINY, first, recipe=RECIPE, seed=2)
    return replace(step, **changes)


def test_latents_are_the_rows_of_the_time(items, first):
    train = items[0]
    rows = backbone_rows(first.network, train.crops, CPU)
    features = forensic_rows(first.network, train.crops, CPU)
    for number, one in enumerate(train.ids):
        assert torch.allclose(first.kept[f"rows.{one}"], rows[2 * number : 2 * number + 2], atol=1e-5)
        assert torch.allclose(first.kept[f"features.{one}"], features[2 * number : 2 * number + 2], atol=1e-4)


def test_an_update_never_looks_at_the_exemplars_crops_and_keeps_their_latents(items, first):
    step = update(items, first)
    once = lrcil.learn(step)
    blind = replace(step.train, crops=step.train.crops.copy())
    blind.crops[:6] = 0
    again = lrcil.learn(replace(step, train=blind))
    other = again.network.state_dict()
    assert all(torch.equal(value, other[name]) for name, value in once.network.state_dict().items())
    assert {name.partition(".")[2] for name in once.kept} == set(step.train.ids)
    for one in step.train.ids[:3]:
        assert torch.equal(once.kept[f"rows.{one}"], first.kept[f"rows.{one}"])
    new = step.train.ids[3]
    rows = backbone_rows(once.network, step.train.crops[6:8], CPU)
    assert torch.allclose(once.kept[f"rows.{new}"], rows, atol=1e-5)


def test_the_latents_reach_the_head_and_every_class_weighs_the_same(items, first):
    stored = lrcil.latents(update(items, first))
    assert stored.ids == items[0].take([0, 1, 4]).ids
    assert stored.target.tolist() == [0, 0, 0, 0, 1, 1]
    assert stored.weight.tolist() == pytest.approx([1 / 8] * 4 + [1 / 4] * 2)
    assert torch.equal(stored.rows[4:], first.kept[f"rows.{items[0].ids[4]}"])


def test_what_is_stored_nowhere_is_learnt_as_media(items, first):
    bare = replace(first, kept={})
    assert lrcil.latents(update(items, bare)) is None
    assert set(lrcil.learn(update(items, bare)).kept) >= {
        f"rows.{one}" for one in items[0].take([0, 1, 4]).ids
    }


def test_layers_below_learn_slower_and_their_normalisation_not_at_all(items, first):
    recipe = replace(RECIPE, balanced_steps=0, weight_decay=0.0)
    learnt = lrcil.learn(update(items, first, recipe=recipe)).network
    before, after = first.network.state_dict(), learnt.state_dict()
    shared = [name for name, value in before.items() if value.ndim and not name.startswith("head.")]
    moved = {name: (after[name] - before[name]).abs().max().item() for name in shared}
    norms = [name for name in moved if ".bn" in name]
    below = [by for name, by in moved.items() if name.startswith("backbone.") and ".bn" not in name]
    assert norms
    assert max(moved[name] for name in norms) == 0
    # One step of Adam moves a weight by about its rate.
    assert 0 < max(below) < 0.3 * moved["project.0.weight"]


def test_distillation_holds_the_replayed_logits(items, first):
    exemplars = [first.kept[f"rows.{one}"] for one in items[0].take([0, 1, 4]).ids]
    features = [first.kept[f"features.{one}"] for one in items[0].take([0, 1, 4]).ids]

    def moved(weight):
        recipe = replace(RECIPE, backbone_steps=0, balanced_steps=60)
        options = Options(distillation=weight, exposure="none")
        learnt = lrcil.learn(update(items, first, options=options, recipe=recipe)).network
        with torch.no_grad():
            old, new = (
                n.classify(torch.cat(exemplars), torch.cat(features)).logits for n in (first.network, learnt)
            )
        return (torch.softmax(new[:, :2], 1) - torch.softmax(old, 1)).abs().mean()

    assert moved(30.0) < 0.7 * moved(0.0)

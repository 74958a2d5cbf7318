"""Closed-form heads: sums task by task give the head of all items at once, as scikit-learn solves it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from detector.release.manifest import Architecture
from updater.benchmark.learners import ridge
from updater.benchmark.learners.methods import LEARNERS, load_learnt, save_learnt
from updater.training.step import Step

CPU = torch.device("cpu")
CLASSES = ("a/real", "a/blocky", "b/real", "b/striped")


@pytest.fixture(scope="module")
def steps(labelled):
    second = labelled({"b/real": 12, "b/striped": 12}, seed=1)
    one = Step(labelled({"a/real": 12, "a/blocky": 12}), CLASSES[:2], Architecture(crop_px=64, frozen=True))
    return one, lambda learnt: replace(one, train=second, classes=CLASSES, previous=learnt)


def rows_and_targets(learnt, items):
    network = learnt.network
    features = torch.from_numpy(ridge.item_features(network, items, CPU))
    with torch.no_grad():
        rows = network.embed(torch.zeros(len(items), 0), features).double().numpy()
    return rows, np.array([[float(name == of) for name in CLASSES] for of in items.families])


@pytest.mark.parametrize("name", ["ridge", "ranpac"])
def test_two_steps_give_the_head_that_scikit_learn_solves_of_all_items(name, steps, tmp_path, monkeypatch):
    monkeypatch.setattr(ridge, "PROJECTED", 300)
    monkeypatch.setattr(ridge, "best_ridge", lambda rows, targets: 10.0)
    first, then = steps
    save_learnt(tmp_path / "first", LEARNERS[name](first))
    second = then(load_learnt(tmp_path / "first", CPU))
    learnt = LEARNERS[name](second)
    both = [rows_and_targets(learnt, step.train) for step in (first, second)]
    rows, targets = (np.concatenate(parts) for parts in zip(*both, strict=True))
    rows = np.column_stack([rows, np.ones(len(rows))])
    wanted = Ridge(alpha=10.0, fit_intercept=False).fit(rows, targets).coef_
    head = learnt.network.head
    found = torch.cat([head.weight, head.bias[:, None]], 1).detach().numpy()
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    assert ((rows @ found.T).argmax(1) == targets.argmax(1)).mean() > 0.8


def test_the_ridge_is_that_of_least_error_on_what_was_not_fitted():
    rng = np.random.default_rng(0)
    rows = torch.from_numpy(rng.normal(size=(200, 30)))
    noise = torch.from_numpy(rng.normal(size=(200, 2)))
    assert ridge.best_ridge(rows, rows[:, :2]) == min(ridge.RIDGES)
    assert ridge.best_ridge(rows, noise) > 100

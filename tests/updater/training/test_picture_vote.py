"""The vote of the picture branch by numbers: discriminants, and the share that they are given."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from updater.training.picture_vote import SHARES, fit_vote, share_of_vote, vote_beside
from updater.training.step import Options


def clouds(count, classes, spread=1.0, seed=0):
    """Points of classes whose means are the corners of a simplex, in 6 dimensions."""
    rng = np.random.default_rng(seed)
    families = [name for name in classes for _ in range(count)]
    means = 4 * np.eye(6)[[classes.index(name) for name in families]]
    return (means + spread * rng.normal(size=means.shape)).astype(np.float32), families


def test_two_classes_of_equal_spread_are_told_apart_halfway_between_their_means():
    # Discriminants of spherical classes: w = (m1 - m0) / s^2, and 0 in the middle, however many each has.
    features, families = clouds(4000, ["real", "gan"])
    weight, bias = fit_vote(features[1000:], families[1000:], ("real", "gan"))
    assert weight.shape == (2, 6)
    difference = (weight[1] - weight[0]).numpy()
    assert difference == pytest.approx([-4, 4, 0, 0, 0, 0], abs=0.25)
    middle = torch.tensor([2.0, 2, 0, 0, 0, 0])
    assert float((weight @ middle + bias).diff()) == pytest.approx(0, abs=0.3)


@pytest.mark.parametrize("classes", [["real", "a"], ["real", "a", "b"]])
def test_logits_are_in_the_order_of_the_classes_and_0_on_average(classes):
    features, families = clouds(60, classes)
    weight, bias = fit_vote(features, families, classes[:1] + classes[:0:-1])
    logits = torch.from_numpy(features) @ weight.T + bias
    named = [(classes[:1] + classes[:0:-1])[number] for number in logits.argmax(1)]
    assert np.mean(np.array(named) == np.array(families)) > 0.97
    assert torch.allclose(logits.sum(1), torch.zeros(len(logits)), atol=1e-3)


def test_more_features_than_items_are_no_obstacle():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(20, 300)).astype(np.float32)
    weight, _ = fit_vote(features, ["real"] * 10 + ["gan"] * 10, ("real", "gan"))
    assert torch.isfinite(weight).all()


def test_a_vote_that_knows_nothing_has_no_share_and_one_that_knows_more_has_a_large_one():
    rng = np.random.default_rng(0)
    families = ["real", "gan"] * 200
    right = torch.tensor([[1.0, -1], [-1, 1]]).repeat(200, 1)
    noise = torch.from_numpy(rng.normal(size=(400, 2))).float()
    even = np.full(400, 1 / 400)
    own = 0.5 * right + noise
    assert share_of_vote(own, 3 * noise[torch.randperm(400)], families, ("real", "gan"), even) < 0.2
    assert share_of_vote(own, right, families, ("real", "gan"), even) == SHARES[-1]
    wrong_counts = np.where(np.arange(400) < 200, 1.0, 0.0)
    half = torch.cat([right[:200], -right[200:]])
    assert share_of_vote(own, half, families, ("real", "gan"), wrong_counts) == SHARES[-1]
    assert share_of_vote(own, half, families, ("real", "gan"), 1 - wrong_counts) == 0


def test_of_a_class_without_items_nothing_is_said():
    features, families = clouds(60, ["real", "a"])
    weight, bias = fit_vote(features, families, ("real", "gone", "a"))
    logits = torch.from_numpy(features) @ weight.T + bias
    assert not logits[:, 1].any()
    assert np.mean((logits[:, 2] > logits[:, 0]).numpy() == np.array([one == "a" for one in families])) > 0.97
    none = fit_vote(features[:60], families[:60], ("real", "a"))
    assert not any(part.any() for part in none)


@pytest.mark.parametrize(("scheme", "logits"), [("mc", 4), ("bc", 2)])
def test_a_vote_speaks_of_what_the_networks_logits_stand_for(labelled, scheme, logits):
    classes = ("x/real", "x/blocky", "y/real", "y/striped")
    parts = []
    for seed, count in enumerate((30, 10)):
        features, _ = clouds(count, list(classes), 0.3, seed)
        parts.append(replace(labelled(dict.fromkeys(classes, count), seed), picture_features=features))
    vote = vote_beside(torch.zeros(40, logits), *parts, classes, Options(scheme=scheme))
    said = vote.on(parts[1]).argmax(1).numpy()
    right = [classes.index(one) if logits == 4 else int("real" not in one) for one in parts[1].families]
    assert np.mean(said == np.array(right)) > 0.9


def test_without_items_held_back_there_is_no_share(labelled):
    items = replace(labelled({"real": 4, "a/real": 4}), picture_features=np.eye(8, dtype=np.float32))
    with pytest.raises(ValueError, match="no item is held back"):
        vote_beside(torch.zeros(0, 2), items, items.take([]), ("real", "a/real"))


def test_a_vote_that_is_forty_times_too_sure_is_given_a_fortieth():
    rng = np.random.default_rng(1)
    truth = rng.normal(size=4000)
    families = [
        "gan" if chance < 1 / (1 + np.exp(-2 * own)) else "real"
        for own, chance in zip(truth, rng.random(4000), strict=True)
    ]
    right = torch.from_numpy(np.stack([-truth, truth], 1)).float()
    share = share_of_vote(
        torch.zeros(4000, 2), 40 * right, families, ("real", "gan"), np.full(4000, 1 / 4000)
    )
    assert share == pytest.approx(1 / 40, rel=0.12)

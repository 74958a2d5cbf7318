"""Sums that add and subtract to the bit, and the discriminants that are solved from them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from detector.release.manifest import Architecture
from updater.training import discriminant
from updater.training.crop_rows import item_features
from updater.training.discriminant import Spread
from updater.training.step import FIRST, Step, TrainedModel
from updater.training.sums import StatisticsError, on_grid, statistics_of, sums_of

CPU = torch.device("cpu")
FROZEN = Architecture(crop_px=64, frozen=True)


def drawn(seed, n=400, width=12):
    """Items of three classes and more sources than have sums of their own, some at the clip."""
    rng = np.random.default_rng(seed)
    rows = on_grid((rng.normal(size=(n, width)) * rng.choice([0.01, 1, 30], (n, 1))).clip(-16, 16))
    names = [f"s{k}" for k in range(5)] + [f"rare{k}" for k in range(20)]
    sources = rng.choice(names, n, p=[0.18] * 5 + [0.005] * 20)
    return rows, np.array(rng.choice(["real", "a", "b"], n)), np.array(sources, str)


def sums(drawn, at=slice(None), own=None):
    rows, families, sources = (of[at] for of in drawn)
    return sums_of(rows, families.tolist(), sources.tolist(), own)


def equal(one, other):
    arrays = ("counts", "shares", "sums", "moments")
    return one.strata == other.strata and all(
        np.array_equal(getattr(one, name), getattr(other, name)) for name in arrays
    )


@pytest.mark.parametrize("seed", range(5))
def test_sums_are_equal_to_the_bit_in_any_order_and_after_anything_that_was_undone(seed):
    items = drawn(seed)
    whole, n = sums(items), len(items[0])
    rng = np.random.default_rng(seed)
    assert equal(sums(items, rng.permutation(n)), whole)
    part = np.isin(items[2], rng.choice(np.unique(items[2]), 6, replace=False))
    first, second = sums(items, part, whole.own), sums(items, ~part, whole.own)
    assert equal(first.plus(second), second.plus(first))
    assert equal(first.plus(second), whole)
    assert equal(whole.minus(first), second)
    assert equal(statistics_of(whole.tensors()), whole)


@pytest.mark.parametrize("seed", range(3))
def test_without_a_source_or_with_a_corrected_label_they_are_those_that_never_saw_it(seed):
    items = drawn(seed)
    whole, gone = sums(items), items[2] == "s1"
    assert equal(whole.without({"s1"}), sums(items, ~gone, whole.own))
    wrong = np.flatnonzero((items[1] == "a") & (items[2] == "s2"))[:3]
    families = items[1].copy()
    families[wrong] = "real"
    corrected = items[0], families, items[2]
    mended = whole.minus(sums(items, wrong, whole.own)).plus(sums(corrected, wrong, whole.own))
    assert equal(mended, sums(corrected, own=whole.own))
    # Not so without the grid, where each sum is rounded.
    loose = items[0] * np.pi, *items[1:]
    moved = sums(loose).without({"s1"}).plus(sums(loose, gone))
    assert not equal(moved, sums(loose, np.argsort(items[2])[::-1]))


def test_each_source_weighs_the_same_however_many_items_it_has():
    rows = on_grid(
        np.random.default_rng(0).normal(size=(1000, 4)) * np.where(np.arange(1000) < 980, 1, 3)[:, None]
        + (np.arange(1000) >= 980)[:, None]
    )
    found = sums_of(rows, ["real"] * 1000, ["many"] * 980 + ["few"] * 20)
    assert np.allclose(found.means(["real"])[0], (rows[:980].mean(0) + rows[980:].mean(0)) / 2)
    own = [np.cov(part.T) for part in (rows[:980], rows[980:])]
    apart = (rows[:980].mean(0) - rows[980:].mean(0)) / 2
    assert np.allclose(found.covariance()[0], (own[0] + own[1]) / 2 + np.outer(apart, apart))


def test_a_class_of_one_source_does_not_lessen_how_far_sources_lie_apart():
    rows, families, sources = np.eye(2)[[0, 0, 1, 1]] * 8, ["real"] * 4, ["x", "x", "y", "y"]
    between = sums_of(rows, families, sources, {"x", "y"}).covariance()[0]
    forged = sums_of(np.repeat(rows[:1], 36, 0), [*"abcdefghi"] * 4, ["x"] * 36, {"x", "y"})
    assert np.allclose(forged.plus(sums_of(rows, families, sources, {"x", "y"})).covariance()[0], between)
    pooled, part = (sums_of(on_grid(np.ones((n, 2))), ["real"] * n, [""] * n, set()) for n in (40, 20))
    assert np.array_equal(pooled.minus(part).means(["real"]), [[1, 1]])


def test_collapsed_sums_solve_alike_and_weigh_as_all_their_sources():
    whole = sums(drawn(0))
    one = whole.collapse("release 0")
    assert one.sources == ("release 0",)
    assert np.allclose(one.means(whole.families), whole.means(whole.families))
    for found, expected in zip(one.covariance(), whole.covariance(), strict=True):
        assert np.allclose(found, expected, atol=1e-9)
    more = sums(drawn(1), drawn(1)[2] == "s3")
    assert replace(one, shares=2 * one.shares).plus(more).shares.max() == 2 * one.shares.max()
    assert np.allclose(
        one.plus(more).means(["a"]),
        whole.plus(replace(more, strata=tuple((f, "x") for f, _ in more.strata))).means(["a"]),
        atol=0.1,
    )


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (lambda: Spread(sums_of(np.zeros((2, 3)), ["real", "a"], ["s", "s"])), "no class has two items"),
        (lambda: sums_of(np.array([[np.nan]]), ["real"], ["s"]), "are no numbers"),
        (
            lambda: sums(drawn(0), slice(9)).minus(sums(drawn(1), slice(99))),
            "to be subtracted than there are",
        ),
        (lambda: sums(drawn(0)).plus(sums(drawn(0, width=3))), "of 12 features and of 3"),
        (lambda: sums_of(np.empty((2**23 + 1, 0)), [], []), "8388609 items are more than the 8388608"),
        (lambda: statistics_of({}), "cannot be read"),
        (lambda: statistics_of(sums(drawn(0)).tensors() | {"sums": np.zeros((1, 1))}), "do not fit together"),
    ],
)
def test_what_cannot_be_summed_or_solved_is_one_clear_line(wrong, said):
    with pytest.raises(StatisticsError, match=said) as raised:
        wrong()
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("rows", [np.zeros((40, 6)), np.eye(40)[:, :6] * 1e-3])
def test_equal_pictures_and_two_thousand_families_are_solved_into_numbers(rows):
    names = [f"f{k}" for k in range(2000)]
    found = sums_of(on_grid(np.concatenate([rows, np.ones((2000, 6))])), ["real"] * 40 + names, ["s"] * 2040)
    solved = Spread(found).discriminants(found.means(["real", *names]), np.arange(2001) == 0, 0.1, 1.0)
    assert np.isfinite(solved.weight).all()
    assert np.isfinite(solved.bias).all()


def step(train, classes, previous=None):
    return Step(train, classes, FROZEN, previous=previous, recipe=FIRST)


def test_an_update_by_sums_is_the_release_that_learnt_all_at_once(labelled):
    first, second = labelled({"real": 20, "blocky": 20}), labelled({"real": 20, "striped": 20}, seed=1)
    before = torch.get_rng_state()
    known = discriminant.learn(step(first, ("real", "blocky")))
    updated = discriminant.learn(step(second, ("real", "blocky", "striped"), known))
    assert torch.equal(before, torch.get_rng_state())
    kept = {name: value.numpy() for name, value in updated.kept.items()}
    of_items = [item_features(known.network, one, CPU) for one in (first, second)]
    rows = [discriminant.rows_of(known.network, features) for features in of_items]
    families = [*first.families, *second.families]
    assert equal(statistics_of(kept), sums_of(np.concatenate(rows), families, ["test"] * 80))
    features = torch.from_numpy(item_features(updated.network, second, CPU))
    with torch.no_grad():
        logits = updated.network.classify(torch.zeros(40, 0), features).logits
    assert (logits.argmax(1).numpy() == np.repeat([0, 2], 20)).mean() > 0.9


def test_a_new_family_from_another_source_alone_does_not_flatten_the_logits(labelled):
    items = labelled({"real": 40, "blocky": 40, "striped": 40})
    families = np.array(items.families)
    apart = np.eye(6)[np.unique(families, return_inverse=True)[1]]
    rows = on_grid(np.random.default_rng(0).normal(size=(120, 6)) + 4 * apart)
    items = replace(items, sources=tuple(np.where(families == "striped", "stream", "library").tolist()))
    _, temperature = discriminant.choose_shrinkage(rows, items, sums_of(rows, items.families, items.sources))
    assert temperature <= 4


def test_a_class_that_nothing_was_summed_of_is_refused(labelled):
    learnt = discriminant.learn(step(labelled({"real": 9, "blocky": 9}), ("real", "blocky")))
    with pytest.raises(StatisticsError, match="no item of striped"):
        discriminant.learn(
            step(
                labelled({"real": 9}),
                ("real", "striped"),
                TrainedModel(learnt.network, ("real", "striped"), learnt.kept),
            )
        )

"""What the nearest known items say of an item: near alone, without a jump, of the side that they are on."""

import numpy as np
import pytest
import torch

from detector.model.graph import Surroundings, leaning
from detector.model.scores import NetworkOutput
from detector.release.artifact import Reference
from detector.release.manifest import GateParameters, Term

GATE = GateParameters(
    terms={name: Term(median=1, scale=0.2, weight=1) for name in ("novelty", "embedding_novelty")},
    clip=6,
    unknown_threshold=3,
    fake_threshold=0.5,
)
ALL = torch.full((10,), 50.0)
"""the level around ten items of whose surroundings hardly anything is known"""


def reference(rows: np.ndarray, families: list[str]) -> Reference:
    """A reference set whose features, embeddings and traces are these rows, float32 [R, 4]."""
    mean, identity = np.zeros(4, np.float32), np.eye(4, dtype=np.float32)
    names = tuple(map(str, range(len(rows))))
    of_rows = (rows, mean, identity)
    return Reference(rows, names, tuple(families), mean, identity, *of_rows, rows, identity, np.array([4]))


def at(rows: np.ndarray) -> NetworkOutput:
    shown = torch.from_numpy(rows)
    return NetworkOutput(shown[:, :2], shown[:, 0], shown, shown)


def usual(count: int, seed: int, centre: float = 0.0) -> np.ndarray:
    return (centre + np.random.default_rng(seed).normal(size=(count, 4))).astype(np.float32)


def odd(count: int, seed: int) -> np.ndarray:
    """Items of a source whose items are unlike one another, far from the usual ones."""
    return (60 + 4 * np.random.default_rng(seed).standard_t(1.5, (count, 4))).astype(np.float32)


def level_at(rows: np.ndarray, known: np.ndarray) -> np.ndarray:
    made = Surroundings(reference(known, ["real"] * len(known)))
    return made.near(at(rows)).mean(made.levels(GATE)).numpy()


def test_weights_are_of_the_nearest_few_and_sum_to_one():
    known = usual(50, 0)
    near = Surroundings(reference(known, ["real"] * 50)).near(at(usual(8, 1)))
    distances = np.sort(np.linalg.norm(usual(8, 1)[:, None] - known, axis=2), 1)
    by_hand = 1 - distances[:, :5] / distances[:, 5:6]
    np.testing.assert_allclose(near.weight, by_hand / by_hand.sum(1, keepdims=True), atol=1e-4)
    shown = np.linalg.norm(usual(8, 1)[:, None] - known[near.places], axis=2)
    np.testing.assert_allclose(shown, distances[:, :5], atol=1e-4)
    values = np.arange(50, dtype=np.float32)
    np.testing.assert_allclose(
        near.mean(torch.from_numpy(values)), (near.weight.numpy() * values[near.places]).sum(1), rtol=1e-5
    )


def test_a_new_source_raises_the_level_near_itself_and_nowhere_else():
    old, new = usual(80, 0), odd(30, 1)
    fresh_old, fresh_new = usual(40, 2), odd(30, 3)
    both = np.concatenate([old, new])
    before, after = level_at(fresh_old, old), level_at(fresh_old, both)
    assert np.abs(after - before).max() < 0.5
    assert np.median(level_at(fresh_new, both)) > 1


def test_levels_widen_and_never_narrow():
    assert level_at(usual(40, 2), usual(80, 0)).min() >= 0


def test_forgeries_near_raise_the_forgeries_logits_and_reals_lower_them():
    known = np.concatenate([usual(30, 0), usual(30, 1, centre=20.0)])
    made = Surroundings(reference(known, ["real"] * 30 + ["blended"] * 30))
    asked = np.concatenate([usual(5, 2), usual(5, 3, centre=20.0)])
    near = made.near(at(asked))
    worst = 2 * np.log(0.5 / 5.5)
    np.testing.assert_allclose(made.lean(near, torch.full((10,), 4.0)), made.lean(near, ALL) / 2)
    lean = made.lean(near, ALL)
    np.testing.assert_allclose(lean, [worst] * 5 + [-worst] * 5, rtol=1e-4)
    assert not made.lean(near, torch.zeros(10)).any()
    logits = leaning(torch.zeros(10, 3), lean)
    assert torch.equal(logits[:, 0], torch.zeros(10))
    assert torch.equal(logits[:, 1], lean)
    assert torch.equal(logits[:, 2], lean)


@pytest.mark.parametrize("family", ["real", "source/real", "blended"])
def test_where_only_one_side_is_known_nothing_leans(family):
    made = Surroundings(reference(usual(30, 0), [family] * 30))
    assert torch.equal(made.lean(made.near(at(usual(5, 2))), ALL[:5]), torch.zeros(5))


def test_two_known_items_that_change_places_make_no_jump():
    """Kernels that sum in another order change the order of distances: the release must say the same."""
    known = np.zeros((12, 4), np.float32)
    known[:, 0] = [1, -1.2, 1.4, -1.6, 2, -2, 9, 9.5, 10, 10.5, 11, 11.5]
    made = Surroundings(reference(known, ["real"] * 5 + ["blended"] * 7))
    sides = np.zeros((2, 4), np.float32)
    sides[:, 0] = [1e-4, -1e-4]
    near = made.near(at(sides))
    assert set(near.places[0].tolist()) != set(near.places[1].tolist())
    lean = made.lean(near, ALL[:2])
    assert abs(float(lean[0] - lean[1])) < 1e-2

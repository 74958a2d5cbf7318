"""More like these, and the labelled exemplars that a cluster is nearest to."""

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.metrics import roc_auc_score

from memory.clusters.similarity import NothingMarkedError, alike, nearest_known, towards
from memory.index import shared_index
from memory.index.shared_index import SharedIndex
from memory.labels import label
from memory.rows import drop

WIDTH = 24


@pytest.fixture
def shared(store, settings, monkeypatch):
    monkeypatch.setattr(shared_index, "_PATIENCE_S", 60)  # a busy machine
    return SharedIndex(store, settings.index_path)


@pytest.fixture
def put(store, fill, make):
    """Remembers items of these features; called a family where one is given."""

    def remembered(name, matrix, family=None):
        ids = [f"{name}-{number}" for number in range(len(matrix))]
        base = 1000 * (1 + sum(map(ord, name)))
        rows = zip(ids, matrix.astype(np.float32), strict=True)
        fill([make(base + n, id=i, features=x) for n, (i, x) in enumerate(rows)], near=0)
        if family is not None:
            label(store, ids, family, "ada")
        return ids

    return remembered


def two_kinds(rng):
    """A covariance that all kinds share, and a difference of two kinds where it is narrow."""
    axes, _ = np.linalg.qr(rng.normal(size=(WIDTH, WIDTH)))
    spread = np.geomspace(8, 0.3, WIDTH)
    return (axes * spread**2) @ axes.T, axes[:, -4:].sum(1) * 0.75


def test_five_marks_part_two_kinds_nearly_as_the_true_distributions_do(store, shared, put):
    rng = np.random.default_rng(5)
    covariance, apart = two_kinds(rng)
    draw = lambda mean, n: rng.multivariate_normal(mean, covariance, n)  # noqa: E731
    put("real", draw(np.zeros(WIDTH), 300), "real")
    kinds = draw(apart, 60), draw(-apart, 60)
    mine, others = put("mine", kinds[0]), put("other", kinds[1])
    ranked = alike(store, shared, [*others, *mine], mine[:5])
    assert ranked[:5] == mine[:5]
    assert sorted(ranked) == sorted([*mine, *others])
    rest = [*mine[5:], *others]
    auc = roc_auc_score([i in mine for i in rest], [-ranked.index(i) for i in rest])
    x = np.concatenate([kinds[0][5:], kinds[1]])
    likelihood = [multivariate_normal(mean, covariance).logpdf(x) for mean in (apart, -apart)]
    best = roc_auc_score([i in mine for i in rest], likelihood[0] - likelihood[1])
    plain = roc_auc_score([i in mine for i in rest], -np.linalg.norm(x - kinds[0][:5].mean(0), axis=1))
    assert best > 0.99
    assert auc > best - 0.05
    assert plain < auc - 0.2  # distance alone does not see what lies where all kinds are narrow


def test_the_direction_is_fishers_where_the_reals_are_many():
    rng = np.random.default_rng(2)
    covariance, apart = two_kinds(rng)
    reals = rng.multivariate_normal(np.zeros(WIDTH), covariance, 20_000)
    marked = np.tile(apart, (5, 1))
    found = towards(marked.astype(np.float32), np.zeros(WIDTH), reals.astype(np.float32))
    fisher = np.linalg.solve(covariance, apart)
    assert found @ fisher / np.linalg.norm(found) / np.linalg.norm(fisher) > 0.99
    alone = towards(marked.astype(np.float32), np.zeros(WIDTH), reals[:1].astype(np.float32))
    assert np.allclose(alone, apart)


def test_marks_elsewhere_do_not_count_and_what_cannot_be_compared_comes_last(store, shared, put):
    rng = np.random.default_rng(0)
    ids = put("one", rng.normal(size=(6, WIDTH)))
    (gone,) = put("gone", rng.normal(size=(1, WIDTH)))
    with store.write() as connection:
        drop(connection, [gone])
    ranked = alike(store, shared, [gone, *ids], [ids[2], "elsewhere"])
    assert (ranked[0], ranked[-1]) == (ids[2], gone)
    assert alike(store, shared, [gone, *ids], [gone])[0] == gone
    for marks in ([], ["elsewhere"]):
        with pytest.raises(NothingMarkedError, match="five are enough"):
            alike(store, shared, ids, marks)


def test_the_nearest_known_are_those_that_numpy_finds(store, shared, put):
    rng = np.random.default_rng(1)
    assert nearest_known(store, shared, ["nothing"], 3) == []
    waiting, ignored = rng.normal(size=(30, WIDTH)), rng.normal(size=(5, WIDTH)) / 9
    known = {name: rng.normal(size=(20, WIDTH)) for name in ("real", "gan")}
    ids = put("waiting", waiting)
    assert nearest_known(store, shared, ids, 3) == []
    put("ignored", ignored, "ignore")
    labelled = {name: put(name, matrix, name) for name, matrix in known.items()}
    found = nearest_known(store, shared, ids[3:], 4)
    raw = np.concatenate([waiting, ignored, *known.values()]).astype(np.float32)
    with shared.current() as index:
        z = index.scale(raw)
    distances = np.linalg.norm(z[35:] - z[3], axis=1)
    names = [(i, name) for name in known for i in labelled[name]]
    expected = np.argsort(distances)[:4]
    assert [(e.id, e.family) for e in found] == [names[i] for i in expected]
    assert [e.distance for e in found] == pytest.approx(distances[expected], abs=2e-3)
